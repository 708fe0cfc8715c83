"""A backing store that others write to after the daemon was killed.

Its clean blocks are dropped, and with dirty data it is refused, until the operator says on the running daemon what is
to become of them. One that was not written to is served as it was, also if the kill came in the middle of writing back,
or its permissions have changed."""

import time
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, qemu_io, write_pattern
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse, unmount

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{store}"
exports = ["{export}"]
admission = "always"
{settings}
"""
LAZY = 'idle_delay = "off"'


class Changing:
    """Volume `db` on a store that others write to."""

    def __init__(self, daemon: Daemon, folder: Path, store: Path) -> None:
        need("qemu-io")
        self.daemon = daemon
        self.folder = folder
        self.store = store
        self.uri = daemon.nbd("db")

    def configure(self, *settings: str) -> None:
        text = CONFIG.format(folder=self.folder, store=self.store, export=self.uri, settings="\n".join(settings))
        self.daemon.configure(text)

    def holds(self, byte: int, offset: str, length: str) -> None:
        """What clients read there."""
        has_pattern(self.uri, byte, offset, length)

    def write_dirty(self) -> None:
        write_pattern(self.uri, 0x22, "8M", "1M")

    def warm(self) -> None:
        """8 MiB of clean blocks: 2,048, of which a start compares 32.

        The stop has noted that they are clean: a kill just after the flush could make some of them dirty again."""
        write_pattern(self.uri, 0x11, "0", "8M")
        self.daemon("flush", "db")
        self.daemon.restart()

    def others_write(self, offset_kib: int) -> None:
        with self.store.open("r+b") as file:
            file.seek(offset_kib << 10)
            file.write(b"\x77" * 4096)

    def dirty_is(self, size: int) -> None:
        found = self.daemon.volume("db")["dirty_bytes"]
        assert found == size, f"{found} bytes are dirty"

    def is_refused(self) -> None:
        """The volume is not served, an alarm says so, and nothing tries it again."""
        alarm = self.daemon.alarm("volume.failed", volume="db")
        assert alarm, self.daemon.alarms()
        assert "on_backing_change" in alarm["message"], alarm
        assert self.daemon.volume("db")["state"] != "serving", self.daemon.volume("db")
        self.daemon.logged("backing.changed", ["db", "forebay set db on_backing_change=keep-dirty"])


@pytest.fixture
def changing(daemon: Daemon, folder: Path) -> Changing:
    """On a file of 16 MiB; it is served lazily."""
    store = folder / "db.img"
    store.write_bytes(b"\x11" * 16 * MIB)
    made = Changing(daemon, folder, store)
    made.configure(LAZY)
    daemon.start()
    return made


def test_unchanged_store_stays_cached(changing: Changing, daemon: Daemon) -> None:
    changing.warm()
    changing.write_dirty()
    daemon.kill()
    daemon.start()
    cached = daemon.volume("db")["cached_bytes"]
    assert cached >= 9 * MIB, f"only {cached} bytes are cached after a crash"
    changing.dirty_is(MIB)

    # Other permissions are no change of its data.
    daemon.kill()
    changing.store.chmod(0o600)
    daemon.start()
    changing.dirty_is(MIB)
    changing.holds(0x22, "8M", "1M")
    changing.holds(0x11, "0", "8M")
    daemon.stop()


def test_dirty_volume_of_changed_store_is_refused(changing: Changing, daemon: Daemon) -> None:
    """4 KiB are written at once after the kill. The way out is the one that the message tells."""
    changing.warm()
    changing.write_dirty()
    daemon.kill()
    changing.others_write(1028)
    daemon.start()
    changing.is_refused()
    daemon("set", "db", "on_backing_change=keep-dirty")
    daemon("volume", "attach", "db")
    changing.holds(0x77, "1028k", "4k")
    changing.holds(0x22, "8M", "1M")
    daemon("set", "db", "on_backing_change=")
    daemon.stop()


def test_clean_blocks_of_changed_store_are_dropped(changing: Changing, daemon: Daemon) -> None:
    changing.warm()
    daemon.kill()
    changing.others_write(2052)
    daemon.start()
    changing.holds(0x77, "2052k", "4k")
    daemon.stop()


def test_dirty_data_is_discarded_by_setting(changing: Changing, daemon: Daemon) -> None:
    """By a change of the file and a reload."""
    changing.warm()
    changing.write_dirty()
    daemon.kill()
    changing.others_write(3076)
    daemon.start()
    changing.is_refused()
    changing.configure(LAZY, 'on_backing_change = "discard-dirty"')
    daemon("reload")
    changing.holds(0x11, "8M", "1M")
    changing.holds(0x77, "3076k", "4k")
    daemon.stop()


def test_dirty_data_is_discarded_by_detach(changing: Changing, daemon: Daemon) -> None:
    """Without being served."""
    changing.write_dirty()
    daemon.kill()
    changing.others_write(4100)
    daemon.start()
    changing.is_refused()
    daemon.refused("volume.absent", "volume", "detach", "db", code=(1, 2), mentions=["db"])
    daemon("volume", "detach", "db", "--discard")
    pool = daemon.pool("fast")
    assert (pool["absent"], pool["volumes"]) == ({}, []), pool
    assert daemon.volumes() == {}
    daemon.stop()


def test_kill_while_writing_back_is_no_change(changing: Changing, daemon: Daemon) -> None:
    daemon.stop()
    changing.configure('idle_delay = "10ms"', "dirty_low_pct = 0", 'max_destage_bandwidth = "4MiB"')
    for turn in range(1, 7):
        daemon.start()
        assert daemon.alarm("volume.failed") is None, f"round {turn}: {daemon.alarms()}"
        write_pattern(changing.uri, turn, "8M", "3M")
        time.sleep(turn * 2 % 10 / 10)
        daemon.kill()
    daemon.start()
    changing.holds(6, "8M", "3M")
    daemon.stop()


@pytest.mark.usefixtures("root")
def test_mounted_block_device_is_refused(daemon: Daemon, devices: Devices, folder: Path) -> None:
    """One that was not written to is served; one from which a file system was mounted meanwhile is not."""
    need("losetup", "mkfs.ext4")
    loop = devices.loop(sparse(folder / "disk.img", 16 * MIB))
    run(["mkfs.ext4", "-q", "-F", loop])
    changing = Changing(daemon, folder, loop)
    changing.configure(LAZY)
    daemon.start()
    changing.write_dirty()
    qemu_io(changing.uri, "read 0 4M")
    daemon.kill()
    daemon.start()
    changing.dirty_is(MIB)
    daemon.kill()
    mounted = devices.mount(str(loop), at=folder / "mnt")
    unmount(mounted, loop)
    daemon.start()
    changing.is_refused()
    daemon.stop()

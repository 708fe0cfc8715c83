"""A disk image with a file system, attached as it is: served as a file over FUSE, mounted through a loop device,
watched and changed through the control files, killed and started again, drained and detached. Then the image mounts
alone."""

import os
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, checksum, random_file, sparse, unmount
from harness.mounts import LoopMount, abort_fuse
from harness.waiting import eventually

SIZE = 96 * MIB
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.home]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["fuse:{folder}/vol/home.img"]
idle_delay = "off"
"""


@pytest.fixture
def served(fuse: None, daemon: Daemon, devices: Devices, folder: Path) -> Daemon:
    """Volume `home` on an image with ext4, as the file vol/home.img; control files in `control`."""
    del fuse
    need("losetup", "mkfs.ext4", "fsck.ext4")
    devices.at_exit(lambda: abort_fuse(folder))
    run(["mkfs.ext4", "-q", "-F", sparse(folder / "disk.img", SIZE)])
    daemon.configure(CONFIG.format(folder=folder), f'control_fs = "{folder}/control"\n')
    daemon.start()
    assert (folder / "vol/home.img").stat().st_size == SIZE
    return daemon


@pytest.fixture
def mounted(served: Daemon, devices: Devices, folder: Path) -> LoopMount:
    """Its file system, mounted through a loop device."""
    mount = LoopMount(devices, folder / "mnt")
    mount.attach(served.folder / "vol/home.img")
    mount.mount()
    return mount


def control(daemon: Daemon, name: str) -> Path:
    return daemon.folder / "control/volumes/home" / name


def synced_file(path: Path, size: int) -> str:
    """A file of random bytes that is on the volume; its checksum."""
    random_file(path, size)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return checksum(path)


def test_control_files_show_and_change(served: Daemon, mounted: LoopMount) -> None:
    synced_file(mounted.at / "a", 12 * MIB)
    run(["sync", "-f", mounted.at])
    assert int(control(served, "dirty_bytes").read_text()) > 0
    stats = dict(line.split("=", 1) for line in control(served, "stats").read_text().splitlines() if "=" in line)
    assert int(stats["writes"]) > 0
    assert " writes=" in control(served, "flashcache_stats").read_text()

    setting = control(served, "config/dirty_high_pct")
    setting.write_text("33\n")
    assert setting.read_text().split() == ["33"]
    assert served.config()["volume"]["home"]["dirty_high_pct"] == 33
    with pytest.raises(OSError):
        setting.write_text("99\n")
    assert "90" in control(served, "last_error").read_text()
    assert setting.read_text().split() == ["33"]

    def is_flushed() -> bool:
        """A write to `flush` returns when the drain is done; the file system may write its journal just then."""
        control(served, "flush").write_text("1\n")
        return int(control(served, "dirty_bytes").read_text()) == 0

    eventually(is_flushed, 40, "nothing is dirty after a flush")
    mounted.unmount()
    mounted.detach()
    served.stop()
    assert not (served.folder / "control/volumes").exists(), "the control files are still mounted"


def test_synced_files_survive_kill(served: Daemon, mounted: LoopMount, devices: Devices, folder: Path) -> None:
    sums = {"a": synced_file(mounted.at / "a", 24 * MIB)}
    control(served, "flush").write_text("1\n")
    sums["b"] = synced_file(mounted.at / "b", 12 * MIB)
    run(["sync", "-f", mounted.at])
    served.kill()
    mounted.drop()
    served.start()  # over the stale mounts
    mounted.attach(folder / "vol/home.img")
    mounted.mount()
    assert {name: checksum(mounted.at / name) for name in sums} == sums
    mounted.unmount()
    mounted.detach()

    served("volume", "detach", "home")
    assert not (folder / "vol/home.img").exists()
    run(["fsck.ext4", "-fn", folder / "disk.img"])
    devices.mount("-o", "loop,ro", str(folder / "disk.img"), at=mounted.at)
    assert {name: checksum(mounted.at / name) for name in sums} == sums
    unmount(mounted.at)
    served.stop()

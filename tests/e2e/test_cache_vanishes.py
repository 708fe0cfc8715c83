"""The cache is not there at a start, or is not the one that it was.

With a missing cache, or an older copy of it, no cache is made, no write is acknowledged, and other pools are served.
When the right one is back, everything acknowledged is there. Commands of messages are followed literally. A kill at
any instant of a start does not turn a good cache away."""

import os
import shutil
import struct
import time
from pathlib import Path

import pytest
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, Devices, sparse
from harness.nbd import FLUSH, READ, WRITE, Client, Disconnected
from harness.waiting import eventually

BLOCKS = 500
CONFIG = """[pool.{pool}]
devices = [{devices}]
[pool.slow]
devices = [{{ path = "{folder}/slow.img", size = "16MiB" }}]
[volume.db]
pool = "{pool}"
backing = "file:{folder}/db.img"
exports = ["{db}"]
idle_delay = "off"
[volume.other]
pool = "slow"
backing = "file:{folder}/other.img"
exports = ["{other}"]
"""


def block(salt: int, number: int) -> bytes:
    return struct.pack("<QQ", salt, number) * 256


def write_blocks(socket: Path, salt: int, export: str = "vol") -> None:
    """Blocks that name themselves; all of them are acknowledged."""
    with Client(str(socket), export) as client:
        for number in range(BLOCKS):
            assert client.call(WRITE, number * 4096 * 7, 4096, block(salt, number))[0] == 0
        assert client.call(FLUSH)[0] == 0


def all_there(socket: Path, salt: int, export: str = "vol") -> None:
    with Client(str(socket), export) as client:
        wrong = [at for at in range(BLOCKS) if client.call(READ, at * 4096 * 7, 4096) != (0, block(salt, at))]
    assert not wrong, f"{len(wrong)} of {BLOCKS} blocks are wrong, the first is {wrong[0]}"


def is_not_served(socket: Path, export: str = "vol") -> None:
    """Nothing is acknowledged."""
    try:
        write_blocks(socket, 9, export)
    except (OSError, Disconnected, AssertionError):
        return
    raise AssertionError("something was acknowledged")


class Vanishing:
    """Pool `fast` on a mount that can be hidden, and pool `slow`; a volume of each."""

    def __init__(self, daemon: Daemon, devices: Devices, folder: Path) -> None:
        self.daemon = daemon
        self.devices = devices
        self.folder = folder
        self.flash = devices.tmpfs("flash", "300M")
        self.cache = self.flash / "cache.img"
        for name in ("db", "other"):
            sparse(folder / f"{name}.img", 64 * MIB)
        self.configure(self.cache, "32MiB")

    def configure(self, cache: Path, size: str = "", pool: str = "fast") -> None:
        device = f'{{ path = "{cache}"' + (f', size = "{size}" }}' if size else " }")
        urls = {name: self.daemon.nbd(name) for name in ("db", "other")}
        self.daemon.configure(CONFIG.format(pool=pool, devices=device, folder=self.folder, **urls))

    def unplug(self) -> None:
        """As if the file system of the cache had not been mounted."""
        self.devices.mount("-t", "tmpfs", "-o", "size=300M", "tmpfs", at=self.flash)

    def plug(self) -> None:
        run(["umount", str(self.flash)])

    def write(self, salt: int) -> None:
        write_blocks(self.daemon.socket("db"), salt, "db")

    def has(self, salt: int) -> None:
        all_there(self.daemon.socket("db"), salt, "db")

    def is_turned_away(self, id: str, *mentions: object) -> str:
        """Pool `fast` is not served, and the alarm and the log say why; pool `slow` is served. Returns why."""
        alarm = self.daemon.alarm("pool.failed", pool="fast")
        assert alarm, self.daemon.alarms()
        assert all(str(value) in alarm["message"] for value in mentions), alarm
        pool = self.daemon.pool("fast")
        assert pool["not_open"], pool
        assert all(str(value) in pool["why"] for value in mentions), pool
        self.daemon.logged(id, mentions)
        is_not_served(self.daemon.socket("db"), "db")
        write_blocks(self.daemon.socket("other"), 3, "other")
        return alarm["message"]

    def follow(self, message: str, command: str) -> None:
        """The message has this command, which is executed as it stands."""
        assert command in message, message
        self.daemon(*command.split()[1:])


@pytest.fixture
def vanishing(daemon: Daemon, devices: Devices, folder: Path) -> Vanishing:
    """Not started yet."""
    return Vanishing(daemon, devices, folder)


def test_cache_behind_a_wrong_file_is_opened_when_it_is_back(vanishing: Vanishing, daemon: Daemon) -> None:
    """Another file was at its path, on the directory that its file system is mounted on."""
    daemon.start()
    vanishing.write(1)
    daemon.stop()
    vanishing.unplug()
    vanishing.cache.write_bytes(bytes(4096) + os.urandom(1 << 20))
    daemon.start()
    vanishing.is_turned_away("cache.foreign-data", vanishing.cache)
    time.sleep(3)
    assert daemon.pool("fast")["not_open"], "the wrong file was taken"
    vanishing.plug()
    daemon.quiet("pool.failed")
    vanishing.has(1)


def test_missing_cache_is_not_made_anew(vanishing: Vanishing, daemon: Daemon) -> None:
    daemon.start()
    vanishing.write(1)
    daemon.stop()
    (cache,) = (path.stem for path in (daemon.state_dir / "caches").glob("*.json") if '"fast"' in path.read_text())
    vanishing.unplug()
    for _ in range(2):
        daemon.start()
        vanishing.is_turned_away("cache.vanished", vanishing.cache, cache.replace("-", ""))
        assert not vanishing.cache.exists(), "a cache was made"
        daemon.refused("cache.vanished", "pool", "open", "fast", mentions=[vanishing.cache])
        assert str(vanishing.cache) in daemon("pool", "show", "fast").stdout
        daemon.kill()

    # An empty file in its place is no other, nor is a path with a typo.
    daemon.start()
    sparse(vanishing.cache, 32 * MIB)
    daemon.refused("cache.vanished", "pool", "open", "fast", "--overwrite", mentions=[vanishing.cache])
    daemon.stop()
    vanishing.configure(vanishing.flash / "cahce.img", "32MiB")
    daemon.start()
    vanishing.is_turned_away("cache.vanished", vanishing.flash / "cahce.img")
    assert not (vanishing.flash / "cahce.img").exists(), "a cache was made"
    daemon.stop()
    vanishing.configure(vanishing.cache, "32MiB")
    daemon.start()
    why = daemon.alarm("pool.failed", pool="fast")["message"]
    vanishing.plug()
    vanishing.follow(why, "forebay pool open fast")
    vanishing.has(1)
    daemon.stop()


def test_older_copy_is_refused(vanishing: Vanishing, daemon: Daemon, folder: Path) -> None:
    """One that was taken at a stop."""
    daemon.start()
    vanishing.write(1)
    daemon.stop()
    older, newest = folder / "older", folder / "newest"
    shutil.copy(vanishing.cache, older)
    daemon.start()
    vanishing.write(2)
    daemon.stop()
    shutil.move(vanishing.cache, newest)
    shutil.copy(older, vanishing.cache)
    daemon.start()
    vanishing.is_turned_away("cache.older-copy", vanishing.cache)
    check = daemon("check", vanishing.cache, "--state-dir", daemon.state_dir, ok=False)
    assert check.code == 1, f"check does not tell: {check.describe()}"
    salvaged = folder / "salvaged"
    salvage = daemon("salvage", older, "--to", salvaged, "--state-dir", daemon.state_dir, "--json", ok=False)
    found = salvage.json()
    assert salvage.code == 1, salvage.describe()
    assert (found["dirty_bytes"], found["uncertain_bytes"] > 0) == (0, True), salvage.describe()
    assert found["doubts"], salvage.describe()
    assert not (salvaged / "db.dirty").exists(), "old data counts as dirty"
    daemon.stop()
    shutil.copy(newest, vanishing.cache)
    daemon.start()
    vanishing.has(2)
    daemon.stop()


def test_older_copy_is_refused_after_kill(vanishing: Vanishing, daemon: Daemon, folder: Path) -> None:
    """One that was taken while the cache was in use. Nor is a second copy taken, at the same time as the first."""
    daemon.start()
    older, newest = folder / "older", folder / "newest"
    shutil.copy(vanishing.cache, older)
    vanishing.write(4)

    def is_recorded() -> bool:
        pool = daemon.pool("fast")
        return pool["recorded"]["dirty_bytes"] == pool["dirty_bytes"] > 0

    eventually(is_recorded, 60, "what was written is recorded")  # every 5 s
    daemon.kill()
    shutil.copy(vanishing.cache, newest)
    shutil.copy(older, vanishing.cache)
    daemon.start()
    vanishing.is_turned_away("cache.older-copy", vanishing.cache)
    daemon.stop()
    shutil.copy(newest, vanishing.cache)
    daemon.start()
    vanishing.has(4)

    copy = folder / "copy"
    shutil.copy(vanishing.cache, copy)
    daemon.forebay.env["STATE_DIRECTORY"] = str(daemon.state_dir)
    words = [
        "--backing",
        f"file:{folder}/other.img",
        "--cache",
        copy,
        "--export",
        daemon.nbd("v"),
        "--mode",
        "writethrough",
    ]
    daemon.refused("cache.in-use", "run", *words, mentions=[daemon.pool("fast")["recorded"]["cache"], daemon.pid])
    vanishing.has(4)
    daemon.stop()


def test_kill_at_start_turns_nothing_away(vanishing: Vanishing, daemon: Daemon) -> None:
    daemon.start()
    vanishing.write(4)
    daemon.kill()
    for ms in (5, 20, 35, 50, 65, 80, 100, 130, 160, 200):
        daemon.start(wait=False)
        time.sleep(ms / 1000)
        daemon.kill()
    daemon.start()
    vanishing.has(4)
    daemon.stop()


@pytest.mark.usefixtures("vanishing")
def test_unwritable_records_refuse_the_pool(daemon: Daemon, devices: Devices) -> None:
    """Before anything is acknowledged."""
    daemon.start()
    daemon.stop()
    state = daemon.state_dir
    devices.mount("--bind", str(state), at=state)
    run(["mount", "-o", "remount,bind,ro", str(state)])
    daemon.start()
    daemon.logged("state.unwritable", [state / "caches"])
    assert daemon.alarm("pool.failed", pool="fast")
    is_not_served(daemon.socket("db"), "db")
    daemon.stop()


def test_new_cache_replaces_a_lost_one(vanishing: Vanishing, daemon: Daemon, folder: Path) -> None:
    """The operator gives the old one up with --new-cache; it does not come back.

    Then the pool and its device have new names."""
    daemon.start()
    vanishing.write(1)
    daemon.stop()
    vanishing.unplug()
    daemon.start()
    why = daemon.alarm("pool.failed", pool="fast")["message"]
    vanishing.follow(why, "forebay pool open fast --new-cache")
    vanishing.write(5)
    daemon.stop()
    second = folder / "second"
    shutil.copy(vanishing.cache, second)
    vanishing.plug()
    daemon.start()
    vanishing.is_turned_away("cache.given-up", vanishing.cache)
    daemon.stop()
    shutil.copy(second, vanishing.cache)
    daemon.start()
    vanishing.has(5)
    daemon.stop()

    # The pool is renamed in the configuration, and its cache moved.
    moved = vanishing.flash / "moved.img"
    vanishing.cache.rename(moved)
    vanishing.configure(moved, pool="quick")
    daemon.start()
    vanishing.has(5)

    # The pool is removed, and created again with the same name.
    daemon("volume", "detach", "db")
    daemon("pool", "remove", "quick")
    moved.unlink()
    daemon("pool", "create", "quick", "--device", f"{vanishing.flash}/again.img:16MiB")
    daemon.stop()
    records = [path.read_text() for path in (daemon.state_dir / "caches").glob("*.json")]
    assert any('"removed"' in record for record in records), records


def test_run_refuses_a_missing_cache(volume: RunVolume, folder: Path) -> None:
    """`forebay run`, too."""
    volume.cache_size = "16MiB"
    volume.make_backing(16 * MIB)
    volume.start()
    write_blocks(volume.socket, 6)
    volume.stop()
    aside = folder / "aside.img"
    volume.cache.rename(aside)
    volume.refused("cache.vanished", mentions=[volume.cache, "--new-cache"])
    assert not volume.cache.exists(), "a cache was made"
    aside.rename(volume.cache)
    volume.start()
    all_there(volume.socket, 6)
    volume.stop()
    volume.cache.unlink()
    volume.start("--new-cache")
    volume.stop()

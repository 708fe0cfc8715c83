"""A cache encrypted at rest: what clients write is not readable on the cache device, kill -9 loses nothing, and
without the right key nothing is opened or changed. check, inspect and salvage with the key; a pool of two devices, a
credential, an upgrade."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.api import Api
from harness.cache_damage import apply
from harness.clients import fio_nbd, need
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, Devices, assert_same, checksum
from harness.proc import kill_if_of
from harness.superblock import BLOCK, COPIES
from harness.waiting import eventually

PATTERN = b"what a client of forebay wrote, in clear"
# What begins structures of the format.
MAGICS = (b"FBAT", b"FBAYCKPT")
SIZE = 32 * MIB
KEEP_DIRTY = ["--set", "idle_delay=off", "--set", "dirty_low_pct=80", "--set", "dirty_high_pct=80"]


class World:
    """A volume of `forebay run`, keys, and a file full of a pattern."""

    def __init__(self, volume: RunVolume) -> None:
        need("nbdcopy", "cmp")
        self.volume = volume
        self.folder = volume.folder
        volume.make_backing(SIZE)
        self.pattern = self.folder / "pattern"
        self.pattern.write_bytes((PATTERN + b"\n") * (8 * MIB // (len(PATTERN) + 1)))
        os.truncate(self.pattern, 8 * MIB)
        self.key = write_key(self.folder / "key", os.urandom(64))
        self.other_key = write_key(self.folder / "other-key", os.urandom(64))

    def with_key(self, key: Path | str | None = None) -> list[str]:
        return ["--set", f"encryption_key_file={key or self.key}"]

    def start(self) -> None:
        """With the right key; nothing is destaged."""
        self.volume.start(*self.with_key(), *KEEP_DIRTY)

    def write(self, uri: str | None = None) -> None:
        run(["nbdcopy", "--flush", self.pattern, uri or self.volume.uri])

    def is_there(self, when: str, uri: str | None = None) -> None:
        """The volume holds the pattern."""
        back = self.folder / "back"
        run(["nbdcopy", uri or self.volume.uri, back])
        os.truncate(back, self.pattern.stat().st_size)
        assert_same(self.pattern, back, when)


def write_key(path: Path, text: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


def shows(path: Path, *words: bytes) -> bool:
    """Whether one of these (the pattern) is in a file."""
    content = path.read_bytes()
    return any(word in content for word in words or (PATTERN,))


@pytest.fixture
def world(make_volume: Callable[..., RunVolume]) -> World:
    return World(make_volume(cache_size="32MiB"))


def test_cache_in_clear_refuses_a_key(world: World) -> None:
    """It also proves that the search of the other tests can find something."""
    volume = world.volume
    volume.start("--set", "idle_delay=off")
    world.write()
    volume.stop()
    assert shows(volume.cache), "the pattern is not even on a cache in clear"
    assert shows(volume.cache, *MAGICS), "structures of the format are not even on a cache in clear"
    before = checksum(volume.cache)
    volume.refused("cache.key-unused", *world.with_key())
    volume.forebay.refused("cache.key-unused", "check", volume.cache, "--key-file", world.key, mentions=[volume.cache])
    assert checksum(volume.cache) == before, "a cache that was refused was changed"


def test_wrong_keys_open_and_change_nothing(world: World) -> None:
    """After kill -9 with everything only in the cache; the right key has it all, as a credential and in digits too."""
    volume, folder = world.volume, world.folder
    world.start()
    world.write()
    assert not shows(volume.backing), "it was destaged: this proves nothing"
    assert not shows(volume.cache), "what a client wrote is on the cache device"
    assert not shows(volume.cache, *MAGICS), "structures of the format are on the cache device in clear"
    world.is_there("while it runs")
    volume.kill()

    before = checksum(volume.cache)
    volume.refused("cache.key-missing", mentions=["encryption_key_file"])
    volume.refused("cache.key-wrong", *world.with_key(world.other_key), mentions=[world.other_key])
    volume.refused("key.unreadable", *world.with_key(folder / "no-key"), mentions=[folder / "no-key"])
    short = write_key(folder / "short-key", world.key.read_bytes()[:32])
    volume.refused("key.unreadable", *world.with_key(short), mentions=[short, "32"])
    readable = write_key(folder / "open-key", world.key.read_bytes(), 0o644)
    volume.refused("key.unreadable", *world.with_key(readable), mentions=[readable])
    volume.refused("setting.value", *world.with_key("key"), code=2, mentions=["encryption_key_file"])
    assert checksum(volume.cache) == before, "a cache that was refused was changed"

    volume.forebay.env["CREDENTIALS_DIRECTORY"] = str(folder)
    volume.start(*world.with_key("credential:key"), "--set", "idle_delay=off")
    world.is_there("after kill -9, with a credential")
    volume.stop()
    del volume.forebay.env["CREDENTIALS_DIRECTORY"]
    digits = write_key(folder / "hex-key", world.key.read_bytes().hex().encode())
    volume.start(*world.with_key(digits), "--set", "idle_delay=off")
    world.is_there("with the key in digits")
    volume.stop()


@pytest.mark.heavy
def test_fio_verifies_before_and_after_restart(world: World, folder: Path) -> None:
    need("fio")
    shape = ["--iodepth=16", "--size=16M", "--offset=16M", "--rw=randwrite", "--bsrange=512-128k", "--blockalign=512"]
    world.start()
    fio_nbd(folder, "j", world.volume.uri, *shape, "--do_verify=1").succeeds()
    world.volume.stop()
    world.start()
    fio_nbd(folder, "j", world.volume.uri, *shape, "--verify_only=1").succeeds()
    world.volume.stop()


@pytest.mark.heavy
def test_offline_tools_need_the_key(world: World, folder: Path) -> None:
    """After kill -9 in the middle of writes: nothing without the key, and everything with it."""
    volume, forebay = world.volume, world.volume.forebay
    oracle = volume.oracle()
    admin = folder / "admin.sock"
    volume.start(*world.with_key(), *KEEP_DIRTY, "--admin", admin)
    checkpoints = Api(admin).get("/v1/stats")["volumes"]["vol"]["checkpoints"]
    load = oracle.load()
    # One that has the volume and its blocks.
    eventually(lambda: Api(admin).get("/v1/stats")["volumes"]["vol"]["checkpoints"] > checkpoints, 60, "a checkpoint")
    volume.kill()
    load.succeeds()

    for tool in (["check"], ["inspect"], ["salvage", "--to", folder / "none"]):
        forebay.refused("cache.key-missing", *tool, volume.cache, mentions=["--key-file"])
        forebay.refused(
            "cache.key-wrong", *tool, volume.cache, "--key-file", world.other_key, mentions=[world.other_key]
        )
    with_key = ["--key-file", world.key]
    checked = forebay.json("check", volume.cache, *with_key)
    assert checked["ok"] and checked["encrypted"], checked
    forebay("inspect", volume.cache, *with_key, "--segments", "--batches")
    onto = Path(shutil.copy(volume.backing, folder / "copy.img"))
    forebay("salvage", volume.cache, *with_key, "--volume", "vol", "--onto", f"file:{onto}")
    judge = volume.oracle()
    judge.state = Path(shutil.copy(oracle.state, folder / "judge.state"))
    judge.verify_file(onto, "onto which the dirty data was salvaged")
    forebay("salvage", volume.cache, *with_key, "--to", folder / "whole")
    salvage_without_superblocks(world, checked["uuid"], onto)

    # The daemon goes on with what was acknowledged.
    world.start()
    oracle.verify("after kill -9")
    volume.stop()


def salvage_without_superblocks(world: World, uuid: str, expected: Path) -> None:
    """Both superblocks are gone: the identity of the cache is needed, as the keys are derived with it."""
    folder, forebay = world.folder, world.volume.forebay
    headless = Path(shutil.copy(world.volume.cache, folder / "headless.img"))
    with headless.open("r+b") as cache:
        for offset in COPIES:
            cache.seek(offset)
            cache.write(bytes(BLOCK))
    salvage = ["salvage", headless, "--key-file", world.key, "--to", folder / "headless"]
    forebay.refused("salvage.nothing", *salvage, mentions=["--uuid"])
    forebay(*salvage, "--uuid", uuid)
    # The kill may have come when a checkpoint was written and no superblock named it yet: what it calls clean the
    # backing store has.
    image = Path(shutil.copy(world.volume.backing, folder / "copy2.img"))
    apply(folder / "headless/vol.dirty", folder / "headless/vol.ranges", image)
    assert_same(expected, image, "without superblocks")


POOL = """
[pool.fast]
devices = [{{ path = "{folder}/one.img", size = "16MiB" }}]
encryption_key_file = "{folder}/key"

[volume.vol]
pool = "fast"
backing = "file:{folder}/backing.img"
exports = ["nbd+unix:///vol?socket={folder}/vol.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] in "ZX"
    except FileNotFoundError:
        return True


def test_pool_of_two_devices_and_upgrade(world: World, daemon: Daemon, devices: Devices) -> None:
    """What is on the second device is encrypted too; a successor that cannot read the key does not take over."""
    folder, uri = world.folder, daemon.nbd()
    one, two = folder / "one.img", folder / "two.img"
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    daemon("pool", "grow", "fast", "--device", f"{two}:48MiB")
    for _ in range(3):
        world.write(uri)
    world.is_there("on two devices", uri)
    assert not shows(one) and not shows(two)
    with two.open("rb") as file:
        file.seek(MIB)
        assert len(file.read().replace(b"\0", b"")) >= 100_000, "nothing is on the second device"

    world.key.rename(folder / "key.away")
    daemon.refused("daemon.upgrade-failed", "upgrade", mentions=[world.key])
    world.is_there("after an upgrade that was refused", uri)
    (folder / "key.away").rename(world.key)
    pid = daemon.json("upgrade")["to_pid"]
    devices.at_exit(lambda: kill_if_of(folder, pid))
    world.is_there("after an upgrade", uri)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: has_ended(pid), 20, "the successor is killed")

    daemon.start()
    world.is_there("after kill -9", uri)
    daemon.stop()
    daemon("check", two, one, "--key-file", world.key)

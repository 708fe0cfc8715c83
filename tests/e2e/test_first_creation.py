"""kill -9 while caches are made for the first time, at any instant: the next start ends what was begun, and asks for
nothing. What somebody else has put there, also behind such a beginning, is not taken."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, assert_same, sparse

KILLS = 12
CONFIG = """
[pool.one]
devices = [{{ path = "{folder}/one.img", size = "32MiB" }}]
[pool.two]
devices = [{{ path = "{folder}/a.img", size = "32MiB" }}, {{ path = "{folder}/b.img", size = "32MiB" }}]
[pool.both]
devices = [{{ path = "{folder}/x.img", size = "32MiB" }}, {{ path = "{folder}/y.img", size = "32MiB" }}]
mirror = true
[volume.db]
pool = "one"
backing = "file:{folder}/db.img"
exports = ["nbd+unix:///db?socket={folder}/db.sock"]
"""
# How a file begins in which a cache is being made.
MARK = b"FBAYNEW\0a cache is being made or filled here: nothing on this device counts yet\n"


class World:
    """A daemon with three pools whose caches are files."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.folder = daemon, daemon.folder
        self.caches = [self.folder / f"{name}.img" for name in ("one", "a", "b", "x", "y")]
        sparse(self.folder / "db.img", 64 * MIB)
        daemon.configure(CONFIG.format(folder=self.folder))

    def begin_anew(self) -> None:
        for cache in self.caches:
            cache.unlink(missing_ok=True)
        shutil.rmtree(self.daemon.state_dir, ignore_errors=True)

    def opens(self, when: str) -> None:
        """All pools are open and whole."""
        self.daemon.start()
        for name in ("one", "two", "both"):
            pool = self.daemon.pool(name)
            assert not pool["not_open"] and not pool["cache_failed"], f"{when}: {pool}"
        alarms = [alarm for alarm in self.daemon.alarms() if alarm["condition"] in ("pool.failed", "cache.degraded")]
        assert not alarms, f"{when}: {alarms}"

    def is_not_taken(self, what: str) -> None:
        """The file of pool `one` is refused, and stays as it is."""
        kept = Path(shutil.copy(self.caches[0], self.folder / "kept"))
        self.daemon.start()
        assert self.daemon.alarm("pool.failed", pool="one"), f"{what} was taken"
        assert_same(self.caches[0], kept, f"after {what}")
        self.daemon.kill()


@pytest.fixture
def world(make_daemon: Callable[..., Daemon]) -> World:
    return World(make_daemon())


def leave(what: str, path: Path) -> None:
    """What can be left of a file in between."""
    path.write_bytes(b"" if what == "empty" else MARK)
    if what == "started":
        path.write_bytes(MARK + bytes(4016))
    elif what in ("sized", "written"):
        sparse(path, 32 * MIB)
    if what == "written":  # checkpoints are, superblocks are not
        put(path, 32 * 4096, b"x")


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_killed_at_any_instant_of_first_start(world: World) -> None:
    began = time.monotonic()
    world.opens("undisturbed")
    took = time.monotonic() - began
    world.daemon.kill()
    for kill in range(KILLS):
        world.begin_anew()
        world.daemon.start(wait=False)
        time.sleep(took * kill / KILLS)
        world.daemon.kill()
        left = {cache.name: cache.stat().st_size for cache in world.caches if cache.exists()}
        world.opens(f"kill {kill}, after {left}")
        world.daemon.kill()


@pytest.mark.parametrize("what", ["empty", "started", "sized", "written"])
def test_what_a_kill_can_leave_is_taken(world: World, what: str) -> None:
    for cache in world.caches:
        leave(what, cache)
    world.opens(what)
    world.daemon.stop()
    world.opens(f"{what}, started again")
    world.daemon.stop()


def test_what_others_have_put_there_is_not_taken(world: World) -> None:
    one = world.caches[0]
    sparse(one, 32 * MIB)
    world.is_not_taken("a file of zeroes")
    world.begin_anew()
    leave("sized", one)
    put(one, 65600, b"_BHRfS_M")
    world.is_not_taken("a file system behind a beginning")
    world.begin_anew()
    one.write_text("text")
    world.is_not_taken("a text")

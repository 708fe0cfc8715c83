"""Messages that name a command are followed as they stand: the command is taken out of the message, and executed.

Each case has a command refused, runs what the message says, and checks that the trouble is over. No data is lost but
what the command of the message gives up."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from harness.clients import READ
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, cut_off, sparse, spoil
from harness.pools import devices_of
from harness.refusals import BASE, DIRTY, Scene
from harness.waiting import eventually

# --- what comes before the command that is refused


def without_pool(scene: Scene) -> None:
    """The configuration does not name the pool any more, and its cache is elsewhere."""
    scene.start()
    scene.daemon.stop()
    scene.flash.rename(scene.folder / "flash.kept")
    scene.configure(named=False)
    scene.daemon.start()


def write_over(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\x44" * length, offset)


def zeroed(scene: Scene) -> Path:
    """A file begins with zeroes, and has something else behind them."""
    write_over(sparse(scene.other, 64 * MIB), 40 * MIB, 4096)
    return scene.other


def small(scene: Scene) -> Path:
    """A file of 64 MiB would fill its file system."""
    scene.devices.tmpfs(scene.small.parent.name, "68M")
    return scene.small


def not_opened(device: Callable[[Scene], Path]) -> Callable[[Scene], None]:
    """The configuration names a device that is not taken."""

    def prepare(scene: Scene) -> None:
        scene.flash = device(scene)
        scene.configure()
        scene.daemon.start()

    return prepare


def beside_zeroed(scene: Scene) -> None:
    scene.start()
    zeroed(scene)


def beside_small(scene: Scene) -> None:
    scene.start()
    small(scene)


def given_up(scene: Scene) -> None:
    """A cache comes back in whose place another one was made."""
    scene.start()
    scene.restart_without(scene.flash)
    scene.daemon("pool", "open", "fast", "--new-cache")
    scene.daemon.stop()
    comes_back(scene)
    scene.daemon.start()


def comes_back(scene: Scene) -> None:
    (scene.folder / "flash.kept").rename(scene.flash)


def older_copy(scene: Scene) -> None:
    """The cache is a copy that was taken at a stop; afterwards the cache was written to."""
    scene.start()
    scene.daemon.stop()
    copy = shutil.copy(scene.flash, scene.folder / "older")
    scene.daemon.start()
    scene.write(16 * MIB, b"\x43" * MIB)
    scene.daemon.stop()
    shutil.copy(copy, scene.flash)
    scene.daemon.start()


def another_cache(scene: Scene) -> None:
    """The cache of another pool is in the place of that of this pool."""
    scene.start()
    spare = scene.folder / "spare.img"
    scene.daemon("pool", "create", "spare", "--device", f"{spare}:64MiB")
    scene.daemon("pool", "export", "spare")
    scene.restart_without(scene.flash)
    spare.rename(scene.flash)


def late(scene: Scene) -> None:
    """The cache comes later than the daemon."""
    scene.start()
    scene.restart_without(scene.flash)
    comes_back(scene)


def changed(scene: Scene) -> None:
    """Somebody writes to the backing store while the daemon does not run."""
    scene.start()
    scene.daemon.stop()
    write_over(scene.store, 16 * MIB, MIB)
    scene.daemon.start()


def moved(scene: Scene) -> None:
    """The backing store is elsewhere, and others wrote to most of it."""
    scene.start()
    kept = scene.restart_without(scene.store)
    scene.store = scene.folder / "moved.img"
    shutil.copy(kept, scene.store)
    write_over(scene.store, 10 * MIB, 22 * MIB)


def write_protected(scene: Scene) -> None:
    """The backing store does not take writes any more."""
    scene.store = scene.devices.loop(scene.store)
    scene.start()
    run(["blockdev", "--setro", scene.store])


def without_export(scene: Scene) -> None:
    """The volume is not attached: the place of its export was taken."""
    scene.start()
    scene.daemon.stop()
    place = scene.daemon.socket("db")
    place.unlink(missing_ok=True)
    place.mkdir()
    scene.daemon.start()
    place.rmdir()


def connected(scene: Scene) -> None:
    """A client is connected."""
    scene.start()
    client = scene.client()
    scene.devices.at_exit(client.close)


def kept(scene: Scene) -> None:
    """The volume is detached, and what is dirty is kept."""
    scene.start()
    scene.daemon("volume", "detach", "db", "--keep")


def of_three(scene: Scene) -> None:
    """The pool has three devices, the last of which is the smallest."""
    scene.start()
    for name, size in (("second", "64MiB"), ("third", "16MiB")):
        scene.daemon("pool", "grow", "fast", "--device", f"{scene.folder}/{name}.img:{size}")


def damaged(scene: Scene) -> None:
    """A block is damaged that only the cache has."""
    scene.start()
    spoil(scene.flash, DIRTY[1][0], only_first=True)


def lost(scene: Scene) -> None:
    """The cache is gone, with what only it had."""
    scene.flash = scene.devices.tmpfs("flash", "80M") / "flash.img"
    scene.start()
    cut_off(scene.daemon.running, scene.flash, "1M")
    with scene.client() as client:
        client.call(READ, DIRTY[0], 4096)
    # Raised when the cache is given up, and again when everything that could be read was written back.
    eventually(lambda: (scene.daemon.alarm("cache.failed", pool="fast") or {}).get("repeats"), 60, "it has failed")


# --- what holds afterwards


def lies_on(*names: str) -> Callable[[Scene], None]:
    """The pool lies on these devices."""

    def check(scene: Scene) -> None:
        assert devices_of(scene.daemon) == [f"{name}.img" for name in names]
        scene.is_served()

    return check


def of_its_store(scene: Scene) -> None:
    """The volume has what its backing store has; the cache that was given up still has the rest."""
    scene.reads(*BASE)
    scene.daemon("salvage", scene.folder / "flash.kept", "--to", scene.folder / "out")
    scene.is_extracted()


def attaches(scene: Scene) -> None:
    """As before; the volume is not known any more."""
    words = ["--backing", f"file:{scene.store}", "--export", scene.daemon.nbd("db"), "--set", "idle_delay=off"]
    scene.daemon("volume", "attach", "db", "--pool", "fast", *words)
    of_its_store(scene)


def imports(scene: Scene) -> None:
    named = ["--backing", f"db=file:{scene.store}", "--export", f"db={scene.daemon.nbd('db')}"]
    scene.daemon("pool", "import", "--device", scene.flash, *named)
    scene.is_served()


def is_removed(scene: Scene) -> None:
    assert "pool" not in scene.daemon.config()
    scene.is_on_store()


def but_one_block(scene: Scene) -> None:
    """Everything else is on the backing store."""
    assert "volume" not in scene.daemon.config()
    with scene.store.open("rb") as file:
        found = os.pread(file.fileno(), MIB, DIRTY[0])
    assert (found.count(DIRTY[1][0]), found.count(0)) == (MIB - 4096, 4096)


def nothing_lost(scene: Scene) -> None:
    """What was lost does not count as lost any more, and can be written again."""
    assert not scene.daemon.volume("db")["lost_bytes"]
    scene.reads(*BASE)
    scene.write(*DIRTY)
    lies_on("other")(scene)


def refuses_again(scene: Scene) -> None:
    assert scene.daemon.json("get", "db")["on_backing_change"]["value"] == "refuse"
    scene.is_served()


# What comes first, the command that is refused, what is done (see `Scene.follow`), and what holds then.
Case = tuple[Callable[[Scene], object], str, Sequence[str | Callable[[Scene], None]], Callable[[Scene], None]]
OPEN, ATTACH, DETACH = "forebay pool open fast", "forebay volume attach db", "forebay volume detach db"
LESS, WORD = "forebay pool shrink fast", "forebay set db on_backing_change="
KEEP = f"{WORD}keep-dirty"
# By the id of the message.
CASES: dict[str, Case] = {
    "cache.vanished": (without_pool, "pool create fast --device {flash}:64MiB", ["--"], attaches),
    "cache.zeroed open": (not_opened(zeroed), "pool open fast", [OPEN], Scene.works),
    "cache.zeroed grow": (beside_zeroed, "pool grow fast --device {other}", ["--"], lies_on("flash", "other")),
    "cache.zeroed replace": (beside_zeroed, "pool replace fast --device {other}", ["--"], lies_on("other")),
    "cache.no-space open": (not_opened(small), "pool open fast", [OPEN], Scene.works),
    "cache.no-space replace": (beside_small, "pool replace fast --device {small}:64MiB", ["--"], lies_on("small")),
    "cache.given-up": (given_up, "pool open fast", ["forebay salvage"], Scene.is_extracted),
    "cache.older-copy": (older_copy, "pool open fast", ["forebay salvage", "rm", "again"], Scene.is_served),
    "cache.not-the-one": (another_cache, "pool open fast", [comes_back, OPEN], Scene.is_served),
    "cache.not-the-one taken": (another_cache, "pool open fast", [f"{OPEN} --"], of_its_store),
    "backing.changed": (changed, "volume attach db", [KEEP, ATTACH], Scene.is_served),
    "backing.not-the-one": (moved, "volume attach db --backing file:{store}", [KEEP, "again", WORD], refuses_again),
    "backing.dirty-elsewhere": (kept, "volume attach new --backing file:{store}", [ATTACH], Scene.can_be_written_back),
    "device.too-small": (Scene.start, "pool replace fast --device {other}:32MiB", [LESS, "again"], lies_on("other")),
    "device.write-protected": (write_protected, "flush db", ["blockdev --setrw", "again"], Scene.is_served),
    "volume.absent": (kept, "volume detach db", [ATTACH], Scene.can_be_written_back),
    "volume.exists": (without_export, "volume attach db --set idle_delay=1h", [ATTACH], Scene.is_served),
    "volume.in-use detach": (connected, "volume detach db", ["--"], Scene.is_on_store),
    "volume.in-use export": (connected, "pool export fast", ["--"], imports),
    "volume.in-use resize": (connected, "volume resize db 16MiB", ["--"], Scene.is_served),
    "volume.lost-data": (damaged, "flush db", [DETACH], but_one_block),
    "volume.not-attached": (without_export, "flush db", [ATTACH, "again"], Scene.is_served),
    "pool.dirty-data export": (kept, "pool export fast", [ATTACH], Scene.can_be_written_back),
    "pool.dirty-data remove": (kept, "pool remove fast", [ATTACH], Scene.can_be_written_back),
    "pool.in-use": (Scene.start, "pool remove fast", [DETACH, "again"], is_removed),
    "pool.lost-data": (lost, "pool replace fast --device {other}:64MiB", ["--"], nothing_lost),
    "pool.not-open erase": (late, "pool remove fast --erase", [OPEN], Scene.is_served),
    "pool.not-open remove": (late, "pool remove fast", [OPEN], Scene.is_served),
    "pool.not-open scrub": (late, "pool scrub fast", [OPEN, "again"], Scene.is_served),
    "pool.replacement": (of_three, "pool shrink fast --device {flash}", [LESS, "again"], lies_on("second")),
    "pool.size": (of_three, "pool shrink fast --size 1MiB", [LESS], lies_on("flash", "second")),
}


@pytest.mark.parametrize("name", CASES)
def test_message_is_followed(daemon: Daemon, devices: Devices, folder: Path, name: str) -> None:
    scene = Scene(daemon, devices, folder)
    prepare, command, steps, check = CASES[name]
    prepare(scene)
    refusal = scene.refused(name.partition(" ")[0], command)
    for step in steps:
        if callable(step):
            step(scene)
        else:
            scene.follow(refusal, step)
    check(scene)

"""A device that Forebay has given up is taken again without --overwrite, by whatever it was given up. What is put on it
afterwards, and what never belonged to the cache, is not overwritten. After kill -9 at any step of a removal, or of an
export, the pool is either there or gone, and its name and its devices can be used again without --overwrite."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, Devices, random_file, sparse
from harness.messages import Message
from harness.pools import Filled
from harness.process import Process
from harness.waiting import eventually


@pytest.fixture
def flash(devices: Devices, folder: Path, root: None) -> Path:
    """A blank loop device."""
    del root
    need("losetup", "blkdiscard")
    return devices.loop(sparse(folder / "flash.raw", 96 * MIB))


@pytest.fixture
def other(devices: Devices, folder: Path, root: None) -> Path:
    del root
    return devices.loop(sparse(folder / "other.raw", 96 * MIB))


@pytest.fixture
def served(daemon: Daemon, folder: Path) -> Daemon:
    """A daemon without a pool."""
    sparse(folder / "db.img", 64 * MIB)
    daemon.configure("")
    daemon.start()
    return daemon


def attach(daemon: Daemon, pool: str = "fast") -> Filled:
    """Attaches volume `db`; what may be written to it."""
    backing = f"file:{daemon.folder}/db.img"
    export = ["--export", daemon.nbd("db"), "--set", "idle_delay=off"]
    daemon("volume", "attach", "db", "--pool", pool, "--backing", backing, *export)
    return Filled(daemon, "db", blocks=384, block=65536)


def fill(daemon: Daemon, times: int = 2) -> None:
    """The cache of pool `fast` is written to nearly everywhere."""
    data = attach(daemon)
    for _ in range(times):
        data.write()
    daemon("volume", "detach", "db")


def create(daemon: Daemon, *words: object, pool: str = "fast") -> None:
    daemon("pool", "create", pool, "--device", *words)


def usable(daemon: Daemon, device: object) -> None:
    """A device is taken as a blank one is."""
    create(daemon, device, pool="again")
    daemon("pool", "remove", "again", "--erase")


def zeroes(device: Path) -> None:
    run(["blkdiscard", "--force", "--zeroout", device])


def write_at(device: Path, offset: int, data: bytes) -> None:
    with device.open("r+b") as file:
        os.pwrite(file.fileno(), data, offset)
        os.fsync(file.fileno())


def test_removed_devices_are_taken_again(served: Daemon, folder: Path, flash: Path) -> None:
    """A device, and a file, after `pool remove --erase`."""
    for place in (str(flash), f"{folder}/flash.img:48MiB"):
        create(served, place)
        fill(served)
        served("pool", "remove", "fast", "--erase")
        usable(served, place)
    assert (folder / "flash.img").stat().st_size == 0
    served.refused(
        "cache.missing", "pool", "create", "again", "--device", folder / "flash.img", mentions=[folder / "flash.img"]
    )
    (folder / "link.img").symlink_to("flash.img")
    usable(served, f"{folder}/link.img:32MiB")
    assert (folder / "link.img").is_symlink(), "the link is gone"
    served.stop()


def test_shrunk_and_replaced_are_taken_again(served: Daemon, folder: Path, flash: Path, other: Path) -> None:
    """A device that left by `pool shrink`, and what `pool replace` left."""
    create(served, f"{folder}/first.img:32MiB")
    served("pool", "grow", "fast", "--device", flash)
    fill(served)
    served("pool", "shrink", "fast", "--device", flash)
    usable(served, flash)
    served("pool", "grow", "fast", "--device", flash)
    fill(served)
    served("pool", "shrink", "fast", "--size", "20MiB")  # what is behind that on the device is as before
    served("pool", "replace", "fast", "--old", flash, "--device", other)
    usable(served, flash)
    served("pool", "shrink", "fast", "--device", other)
    usable(served, other)
    served("pool", "replace", "fast", "--device", flash)
    usable(served, f"{folder}/first.img:16MiB")
    served("pool", "remove", "fast", "--erase")
    usable(served, flash)
    listed = [path for path in (served.state_dir / "replaced").rglob("*") if path.is_file()]
    assert not listed, listed
    served.stop()


def test_mirrored_devices_are_taken_again(served: Daemon, flash: Path, other: Path) -> None:
    served("pool", "create", "fast", "--mirror", "--device", flash, "--device", other)
    fill(served)
    served("pool", "remove", "fast", "--erase")
    usable(served, flash)
    usable(served, other)
    served.stop()


def offers_no_erasing(message: Message) -> None:
    """Data that is recognised may be the disk that was to be cached: no hint erases it."""
    assert not re.search(r"\brm\b|blkdiscard|wipefs|--overwrite|--new-cache", message.text), message


def test_what_is_put_on_it_later_is_kept(served: Daemon, flash: Path) -> None:
    """File system, swap space, partition table, and data somewhere."""
    need("mkfs.ext4", "mkswap")
    again = ["pool", "create", "again", "--device", str(flash)]
    # The device was a cache's, and is given up.
    usable(served, flash)
    run(["mkfs.ext4", "-q", flash])
    offers_no_erasing(served.refused("cache.foreign-data", *again, mentions=[flash, "ext4", "--backing"]))
    zeroes(flash)
    run(["mkswap", flash])
    offers_no_erasing(served.refused("cache.foreign-data", *again, mentions=[flash, "swap", "--backing"]))
    zeroes(flash)
    write_at(flash, 96 * MIB - 512, b"EFI PART")
    offers_no_erasing(served.refused("cache.foreign-data", *again, mentions=[flash, "GPT"]))
    zeroes(flash)
    write_at(flash, 510, b"\x55\xaa")
    served.refused("cache.foreign-data", *again, mentions=[flash])
    zeroes(flash)
    for at in (95, 40):
        usable(served, flash)
        write_at(flash, at * MIB, os.urandom(MIB))
        served.refused("cache.zeroed", *again, mentions=[flash, "--overwrite"])
        zeroes(flash)
    served.stop()


def test_data_behind_the_cache_is_not_touched(served: Daemon, folder: Path, flash: Path) -> None:
    """A cache on the first half of a device, with data of somebody else on the other one."""
    theirs = random_file(folder / "theirs", MIB).read_bytes()
    write_at(flash, 95 * MIB, theirs)
    create(served, f"{flash}:48MiB", "--overwrite")
    fill(served)
    served("pool", "remove", "fast", "--erase")
    with flash.open("rb") as device:
        assert os.pread(device.fileno(), MIB, 95 * MIB) == theirs, "what is behind the cache was written to"
    served.refused("cache.zeroed", "pool", "create", "again", "--device", flash, mentions=[flash, "--overwrite"])
    served.stop()


def test_devices_of_a_cache_are_refused(served: Daemon, folder: Path, flash: Path, other: Path) -> None:
    """A device that is in use, and one of a cache that is not open."""
    create(served, flash)
    served.refused("config.conflict", "pool", "create", "again", "--device", flash, code=(1, 2), mentions=[flash])
    fill(served)
    served.stop()
    (folder / "db.img").unlink()
    served.configure("")
    served.start()
    both = ["--mirror", "--device", flash, "--device", other]
    served.refused("cache.exists", "pool", "create", "again", *both, mentions=[flash])
    create(served, flash)
    served("pool", "remove", "fast", "--erase")
    served.stop()


# --- kill -9


def is_traced(daemon: Daemon, tracer: Process) -> bool:
    """All threads of the daemon are."""
    try:
        tasks = [task / "status" for task in Path(f"/proc/{daemon.pid}/task").iterdir()]
        return all(f"TracerPid:\t{tracer.pid}\n" in task.read_text() for task in tasks)
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended
        return False


def killed_at(daemon: Daemon, step: str, *command: object) -> None:
    """`SYSCALL:NUMBER`: the daemon is killed when a thread of it makes the call for so many times during a command."""
    need("strace")
    call, _, number = step.partition(":")
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(daemon.pid), *inject]
    tracer = Process(strace, daemon.folder / "strace.err")
    # A thread that writes a record by itself may make the call first: then the daemon is killed before the command.
    eventually(
        lambda: is_traced(daemon, tracer) or not tracer.is_running or not daemon.running.is_running,
        60,
        "the daemon is traced",
    )
    if not tracer.is_running and daemon.running.is_running:
        pytest.skip(f"nothing may be traced here: {tracer.tail()}")
    daemon(*command, ok=False, seconds=90)
    # The daemon first: who traces a thread that waits in the kernel does not end before that thread does.
    daemon.running.kill()
    tracer.kill()


def is_configured(daemon: Daemon) -> bool:
    return "fast" in daemon.config().get("pool", {})


def name_is_free(daemon: Daemon) -> None:
    create(daemon, f"{daemon.folder}/third.img:16MiB")
    daemon("pool", "remove", "fast", "--erase")


def remove_is_killed(daemon: Daemon, step: str, flash: Path) -> bool:
    """A removal is killed, and everything can be used again; whether the pool was there after it."""
    first = f"{daemon.folder}/first.img"
    zeroes(flash)
    daemon.start()
    create(daemon, f"{first}:32MiB")
    daemon("pool", "grow", "fast", "--device", flash)
    fill(daemon, times=1)
    killed_at(daemon, step, "pool", "remove", "fast", "--erase")
    daemon.start()
    stays = is_configured(daemon)
    if stays:
        assert not daemon.pool("fast")["not_open"], f"{step}: it is configured, and not open: {daemon.pool('fast')}"
        daemon("pool", "remove", "fast", "--erase")
    name_is_free(daemon)
    usable(daemon, flash)
    usable(daemon, f"{first}:16MiB")
    records = list((daemon.state_dir / "caches").glob("*.json"))
    assert not records, f"{step}: {records}"
    daemon.stop()
    return stays


def export_is_killed(daemon: Daemon, step: str) -> bool:
    """An export with dirty data is killed, and the pool can be imported; whether it was there after it."""
    daemon.start()
    create(daemon, f"{daemon.folder}/first.img:48MiB")
    data = attach(daemon)
    data.write()
    killed_at(daemon, step, "pool", "export", "fast")
    daemon.start()
    stays = is_configured(daemon)
    if stays:
        assert daemon.volume("db")["state"] != "absent", f"{step}: its volume is not attached"
        daemon("pool", "export", "fast")
    # The name; the cache that was exported may be on another host by now.
    name_is_free(daemon)
    named = ["--backing", f"db=file:{daemon.folder}/db.img", "--export", f"db={daemon.nbd('db')}"]
    daemon("pool", "import", "--device", f"{daemon.folder}/first.img", *named)
    data.verify(f"after an export that was killed at {step}")
    daemon("volume", "detach", "db")
    daemon("pool", "remove", "fast", "--erase")
    daemon.stop()
    return stays


CHANGES = [f"rename:{number}" for number in (1, 2, 3, 4)]
WRITES = ["unlink:1", "unlink:2", *(f"pwrite64:{number}" for number in (1, 2, 5, 200))]
FLUSHES = [f"fdatasync:{number}" for number in (1, 2, 3)]


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [CHANGES, WRITES, FLUSHES], ids=["changes", "writes", "flushes"])
def test_killed_removal_leaves_nothing_behind(served: Daemon, flash: Path, steps: list[str]) -> None:
    served.stop()
    stays = [remove_is_killed(served, step, flash) for step in steps]
    if steps is CHANGES:
        assert True in stays and False in stays, f"{stays}: the kills are elsewhere"


@pytest.mark.heavy
def test_killed_export_can_be_imported(served: Daemon) -> None:
    served.stop()
    steps = [*(f"rename:{number}" for number in (1, 2, 3, 4, 5)), "pwrite64:1", "pwrite64:2"]
    stays = [export_is_killed(served, step) for step in steps]
    assert True in stays and False in stays, f"{stays}: the kills are elsewhere"


def recommended_removal(daemon: Daemon) -> Path | None:
    """The file that a hint of the log says to remove (`rm PATH`)."""
    text = "\n".join(message.text for message in daemon.messages())
    found = re.search(rf"rm ({re.escape(str(daemon.state_dir))}/caches/[0-9a-f]+\.json)", text)
    return Path(found[1]) if found else None


def test_cache_used_since_is_not_erased(served: Daemon, make_volume: Callable[..., RunVolume], folder: Path) -> None:
    """A removal was killed before it erased the cache, and another forebay used the device: the next start leaves it
    alone."""
    first = folder / "first.img"
    create(served, f"{first}:16MiB")
    killed_at(served, "ftruncate:1", "pool", "remove", "fast", "--erase")
    assert not is_configured(served)
    volume = make_volume(cache_size="16MiB")
    volume.backing, volume.cache = folder / "db.img", first
    assert volume.state_dir != served.state_dir
    volume.start()
    volume.stop()

    served.start()
    served.logged("cache.used-since", [first, f"rm {served.state_dir}/caches/"])
    record = recommended_removal(served)
    assert first.stat().st_size > 0, "it is erased"
    served.stop()
    assert record is not None
    record.unlink()
    served.start()
    assert recommended_removal(served) is None, "it is still said"
    create(served, first)
    served.stop()

"""What the system gives is used up: threads, descriptors, memory, room for sockets. What is served goes on, what is
asked for is refused with 503 and an id and is not begun, and a stop is as orderly as always. A start that lacks
something ends with a message. Nothing panics."""

import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

import pytest
from harness.agreement import agree
from harness.api import ApiError
from harness.clients import has_pattern, need, write_pattern
from harness.daemon import Daemon, has_line
from harness.devices import MIB, Devices, sparse
from harness.exhaustion import (
    Threads,
    ends_in_order,
    lacks_memory,
    limit_now,
    limited,
    no_panic,
    open_files,
    threads,
    virtual_bytes,
)
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{db}"]

[volume.log]
pool = "fast"
backing = "file:{folder}/log.img"
exports = ["{log}"]
"""
NAMES = ("db", "log", "vm")
NO_THREAD = "daemon.no-thread"
LOOKS = (
    "/v1/daemon",
    "/v1/volumes",
    "/v1/pools",
    "/v1/jobs",
    "/v1/alarms",
    "/v1/overview",
    "/v1/stats",
    "/v1/volumes/db/settings",
    "/metrics",
)


@pytest.fixture
def group(root: None, folder: Path) -> Iterator[Threads]:
    del root
    with threads(folder) as made:
        yield made


@pytest.fixture
def configured(group: Threads, daemon: Daemon) -> Daemon:
    """Pool `fast` with volumes `db` and `log`. (The group is removed after the daemon is gone.)"""
    configure(daemon)
    group.own()
    return daemon


def configure(daemon: Daemon) -> Daemon:
    for name in NAMES:
        sparse(daemon.folder / f"{name}.img", 64 * MIB)
    uris = {name: daemon.nbd(name) for name in NAMES}
    daemon.configure(CONFIG.format(folder=daemon.folder, **uris))
    return daemon


def attach(daemon: Daemon) -> None:
    backing = f"file:{daemon.folder}/vm.img"
    request = {"name": "vm", "pool": "fast", "backing": backing, "exports": [daemon.nbd("vm")]}
    daemon.api.post("/v1/volumes", request)


def create(daemon: Daemon) -> None:
    device = {"path": f"{daemon.folder}/more.img", "size": "16MiB"}
    daemon.api.post("/v1/pools", {"name": "more", "devices": [device]})


def grow(daemon: Daemon) -> None:
    device = {"path": f"{daemon.folder}/grown.img", "size": "32MiB"}
    daemon.api.post("/v1/pools/fast/grow", {"device": device})


def replace(daemon: Daemon) -> None:
    device = {"path": f"{daemon.folder}/new.img", "size": "64MiB"}
    daemon.api.post("/v1/pools/fast/replace", {"device": device})


# Changes that need a thread of their own before anything is begun.
CHANGES: list[Callable[[Daemon], None]] = [attach, create, grow, replace]


def refusal(daemon: Daemon, change: Callable[[Daemon], None]) -> tuple[int, str]:
    """How a change is refused; it must be."""
    try:
        change(daemon)
    except ApiError as error:
        return error.status, error.id
    raise AssertionError(f"{change.__name__} was not refused")


def is_refused(daemon: Daemon, change: Callable[[Daemon], None]) -> bool:
    """Whether a change is refused for want of a thread; any other failure is an error."""
    try:
        change(daemon)
    except ApiError as error:
        assert (error.status, error.id) == (503, NO_THREAD), change.__name__
        return True
    return False


def job_ends_with(daemon: Daemon, job: str) -> str | None:
    """Waits for a job; the id of its error."""
    ended = eventually(lambda: (found := daemon.api.get(f"/v1/jobs/{job}"))["finished"] and found, 60, f"job {job}")
    return ended["error_id"]


def answers(daemon: Daemon) -> None:
    """Each look is answered, many at a time."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda target: daemon.api.request("GET", target)[0], LOOKS * 4))
    assert set(found) == {200}, found


@pytest.mark.heavy
def test_no_thread_is_left(configured: Daemon, group: Threads) -> None:
    daemon = configured
    daemon.start(prepare=group.enter)
    oracle = daemon.oracle("db")
    writer = oracle.load(depth=8)
    before = agree(daemon, NAMES, "before")
    group.limit(1)

    answers(daemon)
    with ThreadPoolExecutor(8) as pool:
        refused = list(pool.map(lambda change: refusal(daemon, change), CHANGES * 2))
    # Each is asked for twice at a time: the second may hear of the first.
    assert set(refused) <= {(503, NO_THREAD), (409, "volume.busy"), (409, "pool.busy")}, refused
    assert (503, NO_THREAD) in refused
    # A job is taken, and ends before its first step.
    job = daemon.api.delete("/v1/volumes/log")["id"]
    assert job_ends_with(daemon, job) == NO_THREAD
    job = daemon.api.post("/v1/volumes/db/flush")["id"]
    assert job_ends_with(daemon, job) == NO_THREAD
    daemon.api.patch("/v1/volumes/log/settings", {"set": {"dirty_high_pct": "40"}})  # needs none
    assert daemon.config()["volume"]["log"].pop("dirty_high_pct") == 40
    daemon.api.patch("/v1/volumes/log/settings", {"set": {"dirty_high_pct": None}})
    assert agree(daemon, NAMES, "after what was refused") == before
    assert not any((daemon.folder / name).exists() for name in ("more.img", "grown.img", "new.img"))

    group.limit(None)
    attach(daemon)
    job = daemon.api.delete("/v1/volumes/vm")["id"]
    assert job_ends_with(daemon, job) is None
    eventually(lambda: not daemon.socket("vm").exists(), 20, "the socket of a detached volume is gone")
    oracle.finish(writer)
    group.limit(1)
    daemon.stop()
    no_panic(daemon)

    group.limit(None)
    daemon.start()
    oracle.verify("after a stop without threads")
    assert agree(daemon, NAMES, "after a stop without threads") == before
    daemon.stop()


@pytest.mark.heavy
@pytest.mark.parametrize("threads", [0, 2])
def test_first_requests_when_no_thread_is_left(configured: Daemon, group: Threads, threads: int) -> None:
    """Nothing was asked for before the limit is reached. I/O threads, and those of the kernel for each of their rings,
    are there all the same: a device that has no thread of the kernel would look like one that fails."""
    daemon = configured
    text = daemon.config_path.read_text()
    lines = f"io_threads = {threads}\nio_threads_busy_pct = 1\n\n[volume.db]"
    daemon.config_path.write_text(text.replace("[volume.db]", lines))
    daemon.start(prepare=group.enter)
    group.limit(1)
    oracle = daemon.oracle("db")
    oracle.write(3, depth=32)
    assert not daemon.pool("fast")["cache_failed"] and daemon.alarms() == []
    oracle.verify("written without further threads")
    daemon.stop()
    no_panic(daemon)
    daemon.never_logged("pool.cache-failed")


@pytest.mark.heavy
def test_stop_under_load_when_no_thread_is_left(configured: Daemon, group: Threads) -> None:
    daemon = configured
    daemon.start(prepare=group.enter)
    oracle = daemon.oracle("db")
    oracle.write(1)
    daemon.stop()
    # The backing store gets other times than those that were noted with this stop, and at the next
    # one nothing can be noted.
    daemon.start(prepare=group.enter)
    daemon("flush", "db")
    writer = oracle.load(depth=8)
    group.limit(1)
    daemon.stop()
    no_panic(daemon)
    writer.wait(60)  # its server is gone
    group.limit(None)
    daemon.start()
    assert daemon.alarms() == []
    oracle.verify("after a stop under load without threads")
    daemon.stop()


@pytest.mark.heavy
@pytest.mark.parametrize("io", ["auto", "psync"])
def test_start_with_too_few_threads(configured: Daemon, group: Threads, io: str) -> None:
    """Whatever number there is: it serves, or it ends in an orderly way and has changed nothing."""
    daemon = configured
    text = daemon.config_path.read_text()
    daemon.config_path.write_text(text.replace("[volume.db]", f'io = "{io}"\n\n[volume.db]'))
    daemon.start(prepare=group.enter)
    before, needed = agree(daemon, NAMES, "before"), group.settle()
    daemon.stop()
    served = 0
    for most in range(1, needed + 3):
        group.limit(most)
        daemon.start(prepare=group.enter, wait=False)
        eventually(lambda: serves(daemon) or not daemon.running.is_running, 60, "it serves, or ends")
        if daemon.running.is_running:
            served += 1
            daemon.stop()
            no_panic(daemon)
        else:
            ends_in_order(daemon)
    assert served, "it served with as many threads as it needs"
    group.limit(None)
    daemon.start(prepare=group.enter)
    assert agree(daemon, NAMES, "after all starts") == before
    daemon.stop()


def serves(daemon: Daemon) -> bool:
    return has_line(daemon.log, "daemon.serving", "forebay: serving")


@pytest.mark.heavy
def test_no_descriptor_is_left(daemon: Daemon) -> None:
    configure(daemon)
    daemon.start()
    oracle = daemon.oracle("db")
    writer = oracle.load(depth=8)
    before = agree(daemon, NAMES, "before")
    # Room for one connection, and for nothing that it asks for.
    limit_now(daemon.pid, resource.RLIMIT_NOFILE, open_files(daemon.pid) + 1)
    for change in CHANGES:
        status, id = refusal(daemon, change)
        assert status in (502, 503) and id, f"{change.__name__}: {status} {id}"
    limit_now(daemon.pid, resource.RLIMIT_NOFILE, 1 << 16)
    assert agree(daemon, NAMES, "after what was refused") == before
    attach(daemon)
    assert job_ends_with(daemon, daemon.api.delete("/v1/volumes/vm")["id"]) is None
    oracle.finish(writer)
    limit_now(daemon.pid, resource.RLIMIT_NOFILE, open_files(daemon.pid))
    daemon.stop()
    no_panic(daemon)
    daemon.start()
    oracle.verify("after a stop without descriptors")
    daemon.stop()


@pytest.mark.heavy
def test_start_with_too_few_descriptors(daemon: Daemon) -> None:
    """Near what a start needs: it serves, or ends in an orderly way."""
    configure(daemon)
    daemon.start()
    before, needed = agree(daemon, NAMES, "before"), open_files(daemon.pid)
    daemon.stop()
    for most in range(4, needed + 4, 3):
        daemon.start(prepare=limited(resource.RLIMIT_NOFILE, most), wait=False)
        eventually(lambda: serves(daemon) or not daemon.running.is_running, 60, "it serves, or ends")
        if daemon.running.is_running:
            daemon.stop()
            no_panic(daemon)
        else:
            ends_in_order(daemon)
    daemon.start()
    assert agree(daemon, NAMES, "after all starts") == before
    daemon.stop()


@pytest.mark.heavy
def test_start_with_too_little_address_space(daemon: Daemon) -> None:
    """It serves, or ends with a message; or, where the heap cannot grow, as after a kill. Then nothing is lost."""
    configure(daemon)
    daemon.start()
    before, needed = agree(daemon, NAMES, "before"), virtual_bytes(daemon.pid)
    oracle = daemon.oracle("db")
    oracle.write(1)
    daemon.stop()
    for part in range(2, 18):
        daemon.start(prepare=limited(resource.RLIMIT_AS, needed * part // 16), wait=False)
        eventually(lambda: serves(daemon) or not daemon.running.is_running, 60, "it serves, or ends")
        code = daemon.running.terminate(60) if daemon.running.is_running else daemon.running.wait(60)
        if not lacks_memory(daemon):
            no_panic(daemon)
            assert code in (0, 1, 2), f"exit code {code}: {daemon.running.tail()}"
    daemon.start()
    assert agree(daemon, NAMES, "after all starts") == before
    oracle.verify("after all starts")
    daemon.stop()


@pytest.mark.heavy
def test_no_address_space_is_left(daemon: Daemon) -> None:
    """No thread gets a stack then."""
    configure(daemon)
    daemon.start()
    oracle = daemon.oracle("db")
    writer = oracle.load(depth=8)
    before = agree(daemon, NAMES, "before")
    limit_now(daemon.pid, resource.RLIMIT_AS, virtual_bytes(daemon.pid) + MIB)
    answers(daemon)
    # A thread that ends in this moment leaves its stack to the next one: a change may be carried out then, as a whole.
    refused = list(takewhile(lambda change: is_refused(daemon, change), CHANGES))
    after = agree(daemon, NAMES, "after the changes")
    assert len(refused) < len(CHANGES) or after == before
    oracle.finish(writer)
    daemon.stop()
    no_panic(daemon)
    daemon.start()
    oracle.verify("after a stop without memory")
    daemon.stop()


def test_no_room_for_sockets(daemon: Daemon, devices: Devices, root: None) -> None:
    """The folder of sockets (/run) is full: what has a socket is served, and a start tells what it has no room for."""
    del root
    configure(daemon)
    run = devices.mount("-t", "tmpfs", "-o", "size=64k,nr_inodes=5", "tmpfs", at=daemon.folder / "run")
    text = daemon.config_path.read_text()
    for name in ("admin", *NAMES):
        text = text.replace(f"{daemon.folder}/{name}.sock", f"{run}/{name}.sock")
    daemon.config_path.write_text(text)
    daemon.admin = daemon.api.path = run / "admin.sock"
    daemon.forebay.env["FOREBAY_ADMIN"] = str(daemon.admin)
    daemon.socket = lambda export="vol": run / f"{export}.sock"  # type: ignore[method-assign]
    daemon.start()
    (run / "last").touch()
    with pytest.raises(OSError):
        (run / "one-too-many").touch()
    before = agree(daemon, NAMES, "before")
    status, id = refusal(daemon, attach)
    assert (status, id) == (409, "export.failed"), (status, id)
    assert agree(daemon, NAMES, "after what was refused") == before
    assert daemon.pool("fast")["volumes"] == ["db", "log"]
    daemon.stop()
    no_panic(daemon)
    for name in ("1", "2"):
        (run / name).touch()
    os.sync()
    daemon.start(wait=False)
    assert ends_in_order(daemon) == "api.listen"
    (run / "1").unlink()
    (run / "2").unlink()
    daemon.start()
    assert agree(daemon, NAMES, "with room again") == before
    daemon.stop()


def test_limit_of_file_sizes(daemon: Daemon, folder: Path) -> None:
    """A backing file may not be written beyond an offset (ulimit -f). The signal for that does not end the daemon: the
    data stays in the cache, an alarm tells why, and it is written back as soon as the limit is gone."""
    need("qemu-io")
    sparse(folder / "db.img", 128 * MIB)
    sparse(folder / "log.img", 8 * MIB)
    daemon.configure(CONFIG.format(folder=folder, db=daemon.nbd("db"), log=daemon.nbd("log")))
    daemon.start()
    limit_now(daemon.running.pid, resource.RLIMIT_FSIZE, 80 * MIB)
    write_pattern(daemon.nbd("db"), 0x51, "100M", "1M")
    daemon.alarmed("destage.failed", volume="db")
    has_pattern(daemon.nbd("db"), 0x51, "100M", "1M")
    limit_now(daemon.running.pid, resource.RLIMIT_FSIZE, None)
    daemon.quiet("destage.failed", volume="db")
    daemon("flush", "db")
    assert (folder / "db.img").read_bytes()[100 * MIB : 101 * MIB] == b"\x51" * MIB
    no_panic(daemon)
    daemon.stop()

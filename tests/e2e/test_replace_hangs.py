"""The device that is being replaced does not answer any more: what waits for it waits as without a copy, the job says
so and can be cancelled, and a stop ends. One that was replaced and does not answer does not keep its pool from being
opened. The device is a file of another forebay's FUSE export, which is paused."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.hanging import HangingFiles, hanging_files
from harness.pools import begin_job, configured_devices, hang, job, job_ends, no_cache, note_replaced, replaced_list
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = ["{old}"]

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["{nbd}"]
idle_delay = "off"
"""


@pytest.fixture
def server(make_daemon: Callable[..., Daemon], folder: Path, fuse: None) -> Iterator[HangingFiles]:
    """Serves the cache device of the pool."""
    del make_daemon, fuse
    with hanging_files(folder, "old", size=120 * MIB) as files:
        yield files


@pytest.fixture
def served(daemon: Daemon, folder: Path, server: HangingFiles) -> Daemon:
    sparse(folder / "vol.img", 32 * MIB)
    daemon.configure(CONFIG.format(old=server.path("old"), folder=folder, nbd=daemon.nbd()))
    daemon.start()
    # A device of zeroes is not taken without it.
    daemon("pool", "open", "fast", "--overwrite")
    return daemon


def begin(daemon: Daemon, server: HangingFiles) -> str:
    """The job of a copy of the device, which does not answer any more."""
    for _ in range(6):
        id = begin_job(daemon, "pool", "replace", "fast", "--device", f"{daemon.folder}/new.img:124MiB")
        hang(server)
        if not job(daemon, id)["finished"] and configured_devices(daemon) == ["disk.img"]:
            return id
        server.resume()
        job_ends(daemon, id, "completed")
        daemon("pool", "replace", "fast", "--device", server.path("old"), "--overwrite")
    raise AssertionError("it is copied each time before it can be stopped")


@pytest.mark.heavy
def test_job_says_what_it_waits_for(served: Daemon, server: HangingFiles, folder: Path) -> None:
    """It is cancelled; clients go on when the device answers; the same new device can be taken then."""
    oracle = served.oracle()
    load = oracle.load(seed=1)
    id = begin(served, server)
    waits_for = lambda: str(server.path("old")) in (job(served, id)["limited_by"] or "")  # noqa: E731
    eventually(waits_for, 60, "the job says what it waits for")
    served("jobs", id, "--cancel", ok=False)
    job_ends(served, id, "cancelled")
    no_cache(served.forebay, folder / "new.img", "after it was cancelled")
    server.resume()
    oracle.finish(load)
    oracle.verify("after it was cancelled")
    assert configured_devices(served) == ["disk.img"]
    served("pool", "replace", "fast", "--device", f"{folder}/new.img:124MiB")
    oracle.verify("after the same device was taken")
    served.stop()


@pytest.mark.heavy
def test_stop_ends_while_the_old_one_hangs(served: Daemon, server: HangingFiles) -> None:
    oracle = served.oracle()
    load = oracle.load(seed=2)
    begin(served, server)
    served.running.signal(signal.SIGTERM)
    served.logged("pool.not-closed", [server.path("old")], seconds=90)
    # Where the server has taken an operation already the kernel does not let the process go before it is answered.
    server.resume()
    assert served.running.wait() == 1, served.running.tail()
    load.wait()
    served.start()
    oracle.verify("after a stop while the device that is copied did not answer")
    assert configured_devices(served) == ["disk.img"]
    served.stop()


@pytest.mark.heavy
def test_replaced_device_is_erased_later(served: Daemon, server: HangingFiles, folder: Path) -> None:
    """A device that was replaced does not answer: the pool is opened all the same."""
    oracle = served.oracle()
    oracle.write(1)
    new = folder / "new.img"
    served("pool", "replace", "fast", "--device", f"{new}:124MiB")
    served.stop()
    note_replaced(served, server.path("old"), new)
    server.pause()
    served.start()
    oracle.verify("while the device that was replaced does not answer")
    served.logged("pool.note", [server.path("old")])
    assert replaced_list(served).exists()
    server.resume()
    served.restart()
    assert not replaced_list(served).exists(), "it stays on the list"
    served.stop()

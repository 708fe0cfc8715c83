"""Backing stores that do not answer hold up only their own volumes: neither control calls of others, nor the end of
the daemon.

What is dirty is safe in the cache. The exit code and the log say what was not closed. The next daemon serves what can
be served, by itself, as soon as the devices are free."""

import fcntl
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import messages
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.hanging import HangingFiles, hanging_files
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import eventually

# As the daemon has it (forebay-daemon/src/main_thread.rs).
REPEATS_SECONDS = 5

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.good]
pool = "fast"
backing = "file:{folder}/good.img"
exports = ["{good}"]
idle_delay = "off"

[volume.hung]
pool = "fast"
backing = "file:{store}"
exports = ["{hung}"]
idle_delay = "off"
"""


@pytest.fixture
def hanging(folder: Path, fuse: None, make_daemon: Callable[..., Daemon]) -> Iterator[HangingFiles]:
    del fuse, make_daemon
    with hanging_files(folder, "slow", "other") as files:
        yield files


def connect(daemon: Daemon, volume: str) -> Client:
    return Client(str(daemon.socket(volume)), volume, timeout=60)


def write(daemon: Daemon, volume: str, byte: int) -> None:
    """1 MiB."""
    with connect(daemon, volume) as client:
        for at in range(0, MIB, 4096):
            assert client.call(WRITE, at, 4096, bytes([byte]) * 4096)[0] == 0
        assert client.call(FLUSH)[0] == 0


def has(daemon: Daemon, volume: str, byte: int) -> None:
    with connect(daemon, volume) as client:
        for at in range(0, MIB, 4096):
            assert client.call(READ, at, 4096) == (0, bytes([byte]) * 4096), f"at {at} of {volume}"


def configure(daemon: Daemon, folder: Path, store: Path) -> None:
    sparse(folder / "good.img", 64 * MIB)
    uris = {name: daemon.nbd(name) for name in ("good", "hung")}
    daemon.configure(CONFIG.format(folder=folder, store=store, **uris))


@pytest.fixture
def serving(daemon: Daemon, folder: Path, hanging: HangingFiles) -> HangingFiles:
    """Volumes `good` and `hung` have dirty data, and the store of `hung` does not answer any more."""
    configure(daemon, folder, hanging.path("slow"))
    daemon.start()
    write(daemon, "good", 7)
    write(daemon, "hung", 8)
    hanging.pause()
    return hanging


def test_attach_to_hung_store_ends(serving: HangingFiles, daemon: Daemon) -> None:
    """One attach fails in time, another one at once, and no other call is held up."""
    store = serving.path("other")
    command = ["volume", "attach", "third", "--backing", f"file:{store}"]
    both = [daemon.forebay.start(*command, name=f"attach-{number}") for number in range(2)]
    eventually(lambda: any(not attach.is_running for attach in both), 20, "the second attach is refused")
    refused, waiting = sorted(both, key=lambda attach: attach.is_running)
    assert refused.wait() == 1, refused.tail()
    messages.check("volume.busy", messages.parse(refused.stderr()), ["third"], "the second attach")

    daemon("status")
    daemon("set", "good", "dirty_high_pct=40")
    daemon("volume", "show", "good")
    daemon("flush", "good")
    assert waiting.is_running, f"others were held up, or it did not wait: {waiting.tail()}"
    assert waiting.wait(60) == 1, waiting.tail()
    messages.check("backing.not-answering", messages.parse(waiting.stderr()), [store], "the first attach")
    assert "third" not in daemon.config()["volume"], "what failed is in the configuration"
    write(daemon, "good", 9)
    has(daemon, "good", 9)


@pytest.mark.limit(400)
def test_stop_does_not_wait_for_hung_store(serving: HangingFiles, daemon: Daemon) -> None:
    """While a detach hangs. A start does not wait for it either, nor does one after kill -9."""
    write(daemon, "good", 9)
    with connect(daemon, "hung") as client:
        client.request(READ, 1, 32 * MIB, 4096)
        # Behind it, and answered at once: then it was taken.
        client.request(READ, 2, 0, 4096)
        assert client.reply() == (0, 2)
        assert len(client.receive(4096)) == 4096
        id = daemon.json("volume", "detach", "hung", "--keep", "--force", "--background")["id"]
        eventually(lambda: daemon.api.get(f"/v1/jobs/{id}")["state"] == "running", 20, "the detach runs")
        before = len(daemon.messages())
        daemon.running.signal(signal.SIGTERM)
        eventually(
            lambda: messages.check("pool.stopping", daemon.messages()[before:], ["fast"], "log"),
            20,
            "the log has the stop",
        )
        assert daemon.running.is_running, "the stop is said when it is over"
        # The store does not answer before the daemon has ended: that it ends at all is the promise.
        code = daemon.running.wait(100)
    assert code == 1, f"exit code {code} of a stop that left a cache open: {daemon.running.tail()}"
    assert serving.process.state() == "T"
    daemon.logged("pool.not-closed", ["fast", serving.path("slow"), "hung"])

    daemon.start(wait=False)
    daemon.wait_until_serving(100)
    has(daemon, "good", 9)
    daemon("status")
    daemon.kill()

    # The hung volume is served once its store answers.
    serving.resume()
    daemon.start(wait=False)
    daemon.wait_until_serving(100)
    eventually(lambda: daemon.volume("hung")["state"] == "serving", 60, "the hung volume is served")
    has(daemon, "good", 9)
    has(daemon, "hung", 8)
    daemon.stop()


@pytest.mark.limit(300)
def test_stop_goes_on_as_long_as_operations_come_back(hanging: HangingFiles, daemon: Daemon, folder: Path) -> None:
    """One store answers after a while, another one never. The daemon would give a pool up after 40 s of which it hears
    nothing; this pool gives up itself, 30 s after the last answer, and names the store."""
    (folder / "late").mkdir()
    with hanging_files(folder / "late", "late") as late:
        configure(daemon, folder, hanging.path("slow"))
        text = daemon.config_path.read_text()
        daemon.config_path.write_text(text.replace(f"file:{folder}/good.img", f"file:{late.path('late')}"))
        daemon.start()
        write(daemon, "good", 7)
        write(daemon, "hung", 8)
        hanging.pause()
        late.pause()
        with connect(daemon, "good") as good, connect(daemon, "hung") as hung:
            for client in (good, hung):
                client.request(READ, 1, 32 * MIB, 4096)
                client.request(READ, 2, 0, 4096)
                assert client.reply() == (0, 2)
                assert len(client.receive(4096)) == 4096
            daemon.running.signal(signal.SIGTERM)
            daemon.logged("pool.stopping", ["fast"])
            time.sleep(15)
            late.resume()
            code = daemon.running.wait(100)
        assert code == 1, f"exit code {code} of a stop that left a cache open: {daemon.running.tail()}"
        daemon.logged("pool.not-closed", ["fast", hanging.path("slow")])
        daemon.never_logged("pool.not-stopped")


def test_cache_of_another_process_is_waited_for(daemon: Daemon, folder: Path) -> None:
    """It is opened when it is free."""
    configure(daemon, folder, sparse(folder / "disk.img", 64 * MIB))
    daemon.start()
    write(daemon, "good", 9)
    write(daemon, "hung", 8)
    daemon.stop()
    flash = folder / "flash.img"
    with flash.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        daemon.start()
        alarm = daemon.alarm("pool.failed", pool="fast")
        assert alarm, daemon.alarms()
        assert str(flash) in alarm["message"], alarm
        assert str(flash) in daemon("status", ok=False).stdout
        assert daemon.pool("fast")["not_open"]
    eventually(lambda: daemon.volumes()["good"]["state"] == "serving", 30, "the pool is opened")
    daemon.quiet("pool.failed")
    has(daemon, "good", 9)
    eventually(lambda: daemon.volumes()["hung"]["state"] == "serving", 60, "the other volume is served")
    has(daemon, "hung", 8)
    daemon.stop()


def test_stop_can_be_forced(serving: HangingFiles, daemon: Daemon) -> None:
    """A signal that is repeated at once changes nothing; one that comes some seconds later ends the daemon."""
    daemon.running.signal(signal.SIGTERM)
    daemon.logged("pool.stopping", ["fast"])
    daemon.running.signal(signal.SIGTERM)
    daemon.logged("daemon.stopping")
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > REPEATS_SECONDS, 20, "a repeated signal counts")
    assert daemon.running.is_running, daemon.running.tail()
    daemon.running.signal(signal.SIGTERM)
    assert daemon.running.wait(20) == 1, daemon.running.tail()
    daemon.never_logged("pool.not-closed")
    assert serving.process.state() == "T"
    serving.resume()
    daemon.start()
    has(daemon, "good", 7)
    has(daemon, "hung", 8)

"""Backing stores that other servers export over NBD: qemu-nbd, nbdkit, and Forebay itself. The servers are killed,
paused and restarted under a verified load, and no acknowledged write is lost or overtaken.

REMOTE_ROUNDS=50 for the long run."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.process import Process
from harness.waiting import eventually

ROUNDS = int(os.environ.get("REMOTE_ROUNDS", "3"))
CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "{store}"
exports = ["{export}"]
dirty_low_pct = 5
store_quarantine = "2s"
{more}
"""
BLOCK = bytes([7]) * 4096


class Server:
    """A server of a raw file, which can be killed and started again."""

    def __init__(self, folder: Path, kind: str, size: int = 96 * MIB) -> None:
        need("nbdkit" if kind == "nbdkit" else "qemu-nbd")
        self.folder, self.kind = folder, kind
        self.socket = folder / "store.sock"
        self.image = folder / "store.img"
        self.image.touch()
        os.truncate(self.image, size)
        self.options: list[str] = []
        self.parameters: list[str] = []
        self.process: Process | None = None

    @property
    def uri(self) -> str:
        return f"nbd+unix:///?socket={self.socket}"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        if self.kind == "nbdkit":
            command = ["nbdkit", "--foreground", "--unix", self.socket, *self.options, "file", self.image]
            command += self.parameters
        else:
            command = ["qemu-nbd", "--persistent", "--shared=8", f"--socket={self.socket}", "--format=raw"]
            command += ["--cache=writeback", "--discard=unmap", *self.options, self.image]
        self.process = Process([str(word) for word in command], self.folder / "store.err")
        eventually(self.socket.is_socket, 20, "the server listens")

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    def kill(self) -> None:
        self.running.kill()

    def pause(self) -> None:
        os.kill(self.running.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.running.pid, signal.SIGCONT)


def serve(daemon: Daemon, server: Server, more: str = "") -> None:
    export = daemon.nbd("db")
    daemon.configure(CONFIG.format(folder=daemon.folder, store=server.uri, export=export, more=more))
    daemon.start()


@pytest.mark.heavy
@pytest.mark.limit(240 + 60 * ROUNDS)
@pytest.mark.parametrize("kind", ["qemu-nbd", "nbdkit"])
def test_no_write_is_lost_while_the_server_is_killed_and_paused(daemon: Daemon, folder: Path, kind: str) -> None:
    server = Server(folder, kind)
    server.start()
    serve(daemon, server)
    oracle, moments = daemon.oracle("db"), random.Random(ROUNDS)
    load = oracle.load()
    for turn in range(ROUNDS):
        time.sleep(moments.uniform(0.2, 2))
        if turn % 3 == 1:
            server.pause()
            time.sleep(moments.uniform(0, 2))
            server.resume()
            continue
        server.kill()
        daemon.alarmed("store.away", volume="db")
        time.sleep(moments.uniform(0, 2))
        server.start()
        daemon.quiet("store.away", volume="db")
    oracle.finish(load)
    oracle.verify("after the last round")
    daemon("volume", "detach", "db")
    server.kill()
    oracle.verify_file(server.image, "after the detach")
    daemon.stop()


def test_cache_serves_while_the_store_is_away(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "qemu-nbd")
    server.start()
    serve(daemon, server, 'idle_delay = "off"')
    with (
        Client(str(daemon.socket("db")), "db", timeout=60) as client,
        Client(str(daemon.socket("db")), "db", timeout=60) as misses,
    ):
        assert client.call(WRITE, 0, 4096, BLOCK)[0] == 0
        server.kill()
        alarm = daemon.alarmed("store.away", volume="db")
        assert "is away" in alarm["message"]
        misses.request(READ, 9, 32 * MIB, 4096)
        for at in range(0, MIB, 4096):
            assert client.call(WRITE, at, 4096, BLOCK)[0] == 0
            assert client.call(READ, at, 4096) == (0, BLOCK)
        assert client.call(FLUSH)[0] == 0
        server.start()
        assert misses.reply() == (0, 9)
        assert misses.receive(4096) == bytes(4096)
    daemon.quiet("store.away", volume="db")
    daemon.stop()


def test_misses_fail_after_the_time_limit(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "nbdkit")
    server.start()
    serve(daemon, server, 'store_timeout = "1s"')
    with Client(str(daemon.socket("db")), "db", timeout=60) as client:
        server.kill()
        daemon.alarmed("store.away", volume="db")
        assert client.call(READ, 32 * MIB, 4096)[0] != 0
        assert client.call(WRITE, 0, 4096, BLOCK)[0] == 0
        server.start()
        daemon.quiet("store.away", volume="db")
        assert client.call(READ, 32 * MIB, 4096) == (0, bytes(4096))
    daemon.stop()


def test_stop_does_not_wait_for_a_store_that_is_away(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "qemu-nbd")
    server.start()
    serve(daemon, server)
    oracle = daemon.oracle("db")
    load = oracle.load()
    time.sleep(1)
    server.kill()
    daemon.alarmed("store.away", volume="db")
    daemon.stop()
    load.wait(60)  # a read that waited for the store may have failed
    # It waits for the server as for a late device.
    daemon.start(wait=False)
    time.sleep(1)
    server.start()
    eventually(lambda: daemon.socket("db").is_socket(), 60, "the volume is exported")
    oracle.verify("after a stop while the store was away")
    daemon("volume", "detach", "db")
    oracle.verify_file(server.image, "after the detach")
    daemon.stop()


@pytest.mark.heavy
def test_nothing_is_lost_if_daemon_and_server_are_killed(daemon: Daemon, folder: Path) -> None:
    # nbdkit 1.32 may abort when its client is killed: "raw_send_socket: Assertion `sock >= 0' failed".
    server = Server(folder, "qemu-nbd")
    server.start()
    serve(daemon, server)
    oracle = daemon.oracle("db")
    for turn in range(ROUNDS):
        load = oracle.load(seed=turn + 1)
        time.sleep(1)
        if turn % 2:
            server.kill()
            daemon.alarmed("store.away", volume="db")
        daemon.kill()
        load.succeeds()
        if turn % 2:
            server.start()
        daemon.start()
        oracle.verify(f"after kill {turn}")
    daemon("volume", "detach", "db")
    oracle.verify_file(server.image, "after the detach")
    daemon.stop()


def test_forebay_is_a_store_of_forebay(daemon: Daemon, folder: Path, make_volume: Callable[..., RunVolume]) -> None:
    lower = make_volume()
    lower.make_backing(96 * MIB)
    lower.start()
    export = daemon.nbd("db")
    daemon.configure(CONFIG.format(folder=folder, store=lower.uri, export=export, more=""))
    daemon.start()
    oracle = daemon.oracle("db")
    load = oracle.load()
    time.sleep(1)
    lower.kill()
    daemon.alarmed("store.away", volume="db")
    lower.start()
    daemon.quiet("store.away", volume="db")
    oracle.finish(load)
    oracle.verify("after the lower cache was killed")
    daemon("volume", "detach", "db")
    daemon.stop()
    lower.stop()


def test_detach_waits_for_the_store_and_can_be_cancelled(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "qemu-nbd")
    server.start()
    serve(daemon, server)
    server.kill()
    daemon.alarmed("store.away", volume="db")
    with Client(str(daemon.socket("db")), "db", timeout=60) as client:
        for at in range(0, 8 * MIB, 4096):
            assert client.call(WRITE, 64 * MIB + at, 4096, BLOCK)[0] == 0
    job = daemon("volume", "detach", "db", "--background").stdout.strip()
    volume = daemon.volume("db")
    assert volume["backing_state"] == "away"
    assert "cannot connect" in volume["backing_why"] or "closed the connection" in volume["backing_why"]
    assert daemon.api.get(f"/v1/jobs/{job}")["state"] == "running"
    daemon("jobs", job, "--cancel")
    eventually(lambda: daemon.api.get(f"/v1/jobs/{job}")["state"] == "cancelled", 60, "the detach is cancelled")
    server.start()
    daemon.quiet("store.away", volume="db")
    daemon("volume", "detach", "db")
    assert server.image.read_bytes()[64 * MIB : 72 * MIB] == BLOCK * (8 * 256)
    daemon.stop()


@pytest.mark.long
@pytest.mark.limit(400)
def test_server_that_is_paused_for_long_is_noticed(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "nbdkit")
    server.start()
    serve(daemon, server)
    oracle = daemon.oracle("db")
    for turn in range(2):
        load = oracle.load(seed=turn + 1)
        server.pause()
        alarm = daemon.alarmed("store.away", seconds=150, volume="db")
        assert "no answer" in alarm["message"]
        server.resume()
        daemon.quiet("store.away", seconds=60, volume="db")
        oracle.finish(load)
        oracle.verify(f"after pause {turn}")
    daemon("volume", "detach", "db")
    oracle.verify_file(server.image, "after the detach")
    daemon.stop()


def test_full_cache_and_another_volume_while_the_store_is_away(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "qemu-nbd")
    server.start()
    other = folder / "other.img"
    other.touch()
    os.truncate(other, 64 * MIB)
    export = daemon.nbd("other")
    serve(daemon, server, f'[volume.other]\npool = "fast"\nbacking = "file:{other}"\nexports = ["{export}"]\n')
    server.kill()
    with (
        Client(str(daemon.socket("db")), "db", timeout=120) as client,
        Client(str(daemon.socket("other")), "other", timeout=60) as neighbour,
    ):
        # More than the cache has room for: the last ones wait.
        for number in range(64):
            client.request(WRITE, number, number * MIB, MIB, BLOCK * 256)
        daemon.alarmed("store.away", volume="db")
        for at in range(0, 4 * MIB, 65536):
            assert neighbour.call(READ, at + 32 * MIB, 4096) == (0, bytes(4096))
            assert neighbour.call(READ, at, 4096) == (0, bytes(4096))
        server.start()
        assert sorted(client.reply() for _ in range(64)) == [(0, number) for number in range(64)]
        for at in range(0, 64 * MIB, 4 * MIB):
            assert client.call(READ, at, 4096) == (0, BLOCK)
    daemon("volume", "detach", "db")
    assert server.image.read_bytes()[: 64 * MIB] == BLOCK * (64 * 256)
    daemon.stop()


def test_export_of_another_size_gets_no_request(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "nbdkit")
    server.start()
    serve(daemon, server)
    server.kill()
    os.truncate(server.image, 48 * MIB)
    server.start()
    daemon.alarmed("store.away", volume="db")
    what = f"the export has {48 * MIB} bytes, but had {96 * MIB}"
    eventually(lambda: what in daemon.alarm("store.away", volume="db")["message"], 30, "the alarm has the reason")
    server.kill()
    os.truncate(server.image, 96 * MIB)
    server.start()
    daemon.quiet("store.away", volume="db")
    daemon.stop()


def test_errors_of_the_server_are_those_of_a_device(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "nbdkit")
    fails = folder / "fails"
    server.options = ["--filter=error", "--filter=delay"]
    server.parameters = ["error-pwrite-rate=100%", f"error-file={fails}", "delay-read=20ms", "delay-write=20ms"]
    server.start()
    serve(daemon, server, 'idle_delay = "1s"')
    fails.touch()
    with Client(str(daemon.socket("db")), "db", timeout=60) as client:
        for at in range(0, 16 * MIB, MIB):
            assert client.call(WRITE, at, 4096, BLOCK)[0] == 0
        daemon.alarmed("destage.failed", volume="db")
        fails.unlink()
    daemon("volume", "detach", "db")
    assert server.image.read_bytes()[:4096] == BLOCK
    daemon.stop()


def test_unusable_exports_are_refused_with_their_reason(daemon: Daemon, folder: Path) -> None:
    server = Server(folder, "nbdkit", MIB)
    daemon.configure(f'[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n')
    daemon.start()

    def refused(mentions: str) -> None:
        message = daemon.refused("backing.unreadable", "volume", "attach", "db", "--backing", server.uri)
        assert mentions in message.text, message

    refused("cannot connect")
    server.options = ["--readonly"]
    server.start()
    refused("read-only")
    server.kill()
    daemon.stop()

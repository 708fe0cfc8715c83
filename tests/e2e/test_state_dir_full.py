"""A state directory that takes no writes, because it is full or read-only: an alarm says so for as long as it lasts.

An upgrade is refused before anything is given up, and clients stay connected. After a crash the pool is served, as its
record says that it is in use; after an orderly stop it is opened as soon as there is room."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import messages
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "32MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{export}"]
idle_delay = "off"
"""


class Connection:
    """One connection that stays; it writes something new each time, and reads it again."""

    def __init__(self, daemon: Daemon) -> None:
        self.client = Client(str(daemon.socket("db")), "db")
        self.count = 0

    def is_served(self) -> None:
        self.count += 1
        for at in range(self.count * 64, self.count * 64 + 64):
            assert self.client.call(WRITE, at * 4096, 4096, bytes([at % 251]) * 4096)[0] == 0
        assert self.client.call(FLUSH)[0] == 0
        assert self.client.call(READ, at * 4096, 4096) == (0, bytes([at % 251]) * 4096)


@contextlib.contextmanager
def connected(daemon: Daemon) -> Iterator[Connection]:
    connection = Connection(daemon)
    try:
        yield connection
    finally:
        connection.client.close()


@pytest.fixture
def state(daemon: Daemon, devices: Devices, folder: Path) -> Path:
    """The state directory of a daemon that is configured: a small file system."""
    state = devices.tmpfs(daemon.state_dir.name, "600k")
    sparse(folder / "db.img", 48 * MIB)
    daemon.configure(CONFIG.format(folder=folder, export=daemon.nbd("db")))
    return state


def fill(state: Path) -> None:
    with (state / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def is_open(daemon: Daemon) -> bool:
    return not daemon.pool("fast")["not_open"]


def is_in_trouble(daemon: Daemon, connection: Connection, *, full: Path | None) -> None:
    connection.is_served()

    def is_alarmed() -> bool:
        # A record that took the place of another one just then has left room.
        if full:
            fill(full)
        return daemon.alarm("state.unwritable", pool="fast") is not None

    eventually(is_alarmed, 30, "an alarm")
    told = daemon.logged("state.unwritable", ["fast", daemon.state_dir / "caches"])
    connection.is_served()
    same = [message for message in daemon.messages() if message.what == told.what]
    assert len(same) == 1, f"told more than once: {same}"
    raised = [event for event in daemon.events("alarm.raised") if event["details"]["condition"] == "state.unwritable"]
    assert len(raised) == 1, raised
    alarms = daemon.json("status")["alarms"]
    assert "state.unwritable" in str(alarms), alarms
    daemon.refused("state.unwritable", "upgrade", mentions=[daemon.state_dir])
    connection.is_served()
    assert is_open(daemon)
    assert daemon.running.is_running


def is_over(daemon: Daemon, before: int) -> None:
    """The alarm ends, and the log says so; it had `before` messages when the trouble ended."""
    daemon.quiet("state.unwritable")
    said = lambda: messages.check("alarm.cleared", daemon.messages()[before:], ["fast", "state_dir"], "log")  # noqa: E731
    eventually(said, 20, "the log says that it is over")


def test_full_state_dir_has_an_alarm(state: Path, daemon: Daemon) -> None:
    daemon.start()
    with connected(daemon) as connection:
        fill(state)
        is_in_trouble(daemon, connection, full=state)
        before = len(daemon.messages())
        (state / "filler").unlink()
        is_over(daemon, before)
        connection.is_served()
    daemon.stop()


def test_read_only_state_dir_has_an_alarm(state: Path, daemon: Daemon, devices: Devices) -> None:
    """Also after a crash and a start, which is served. An upgrade succeeds when it is over."""
    daemon.start()
    with connected(daemon) as connection:
        devices.mount("--bind", str(state), at=state)
        run(["mount", "-o", "remount,bind,ro", str(state)])
        is_in_trouble(daemon, connection, full=None)
    daemon.kill()
    daemon.start()
    assert is_open(daemon)
    with connected(daemon) as connection:
        connection.is_served()
        daemon.alarmed("state.unwritable", pool="fast")
        before = len(daemon.messages())
        run(["mount", "-o", "remount,bind,rw", str(state)])
        is_over(daemon, before)
        old = daemon.pid
        daemon("upgrade")
        connection.is_served()
        successor = daemon.json("status")["daemon"]["pid"]
        assert successor != old
        devices.at_exit(lambda: os.kill(successor, signal.SIGKILL))
        connection.is_served()
    os.kill(successor, signal.SIGTERM)
    eventually(lambda: not is_alive(successor), 30, "the successor has ended")


def is_alive(pid: int) -> bool:
    """Not gone, and no zombie of a process that does not wait for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except FileNotFoundError:
        return False


def test_pool_is_opened_when_there_is_room(state: Path, daemon: Daemon, folder: Path) -> None:
    """After an orderly stop: without a record that it is in use it is not opened."""
    daemon.start()
    with connected(daemon) as connection:
        connection.is_served()
    daemon.stop()
    fill(state)
    daemon.start()
    alarm = daemon.alarm("pool.failed", pool="fast")
    assert alarm, "it is served, and no record says that it is in use"
    assert str(state / "caches") in alarm["message"], alarm
    assert not is_open(daemon)
    (state / "filler").unlink()
    daemon.quiet("pool.failed")
    # A pool is open before its volumes have their exports.
    eventually(lambda: daemon.volumes().get("db", {}).get("state") == "serving", 30, "the volume is served")
    with connected(daemon) as connection:
        connection.is_served()
    daemon.stop()
    daemon("check", folder / "flash.img")

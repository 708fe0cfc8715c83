"""A volume that is in use is not taken away by mistake: the refusal names who has its file open, or is connected.
With --force, and at an orderly stop, every request that was taken is answered before its connection is closed."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.api import ApiError
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse, unmount
from harness.nbd import READ, WRITE, Client, Disconnected
from harness.process import Process

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{nbd}", "nbd://127.0.0.1:{port}/db"]
emulate = "hdd-7200"
"""


@pytest.fixture
def tcp(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def served(daemon: Daemon, folder: Path, tcp: int) -> Daemon:
    """Volume `db` on a slow store, with exports on a unix socket and on a TCP port."""
    sparse(folder / "db.img", 128 * MIB)
    daemon.configure(CONFIG.format(folder=folder, nbd=daemon.nbd("db"), port=tcp))
    daemon.start()
    return daemon


def test_connected_client_is_in_the_way(served: Daemon) -> None:
    """It is named, and not harmed by what is refused. Once it has left, the volume shrinks and is detached."""
    client = Client(str(served.socket("db")), "db")
    for how in ([], ["--keep"], ["--discard"]):
        who = ["db", "1 NBD", str(os.getpid()), "--force"]
        served.refused("volume.in-use", "volume", "detach", "db", *how, mentions=who)
    served.refused("volume.in-use", "volume", "resize", "db", "64MiB", mentions=["db"])
    with pytest.raises(ApiError) as refused:
        served.api.delete("/v1/volumes/db?how=drain")
    assert refused.value.status == 409, refused.value
    error, _ = client.call(READ, 0, 4096)
    assert error == 0, "the client was harmed"
    client.close()
    served("volume", "resize", "db", "127MiB")
    served("volume", "detach", "db")
    served.stop()


class Flight:
    """64 requests (misses on a slow store, and writes) that are under way when the volume is taken away."""

    def __init__(self, place: str) -> None:
        self.client = Client(place, "db")
        for cookie in range(64):
            if cookie % 4:
                self.client.request(READ, cookie, (cookie * 7919 % 1000) * 65536, 16384)
            else:
                self.client.request(WRITE, cookie, (100 << 20) + cookie * 65536, 4096, bytes([cookie]) * 4096)
        # One more, which is answered at once: requests are taken in their order, so all of them have been.
        self.client.request(WRITE, 64, 120 << 20, 4096, bytes(4096))
        self.answered: set[int] = set()
        while 64 not in self.answered:
            self.take()

    def take(self) -> None:
        error, cookie = self.client.reply()
        assert error == 0, f"request {cookie}: error {error}"
        if cookie % 4:
            self.client.receive(16384)
        self.answered.add(cookie)

    def ends(self) -> None:
        """All are answered, and then the connection is closed."""
        try:
            while len(self.answered) < 65:
                self.take()
        except Disconnected as error:
            raise AssertionError(f"cut off after {len(self.answered)} of 65 answers: {error}") from error
        with contextlib.suppress(Disconnected):
            raise AssertionError(f"an answer to nothing: {self.client.receive(1)!r}")


@pytest.fixture(params=["unix", "tcp"])
def flight(request: pytest.FixtureRequest, served: Daemon, tcp: int) -> Iterator[Flight]:
    flight = Flight(f"127.0.0.1:{tcp}" if request.param == "tcp" else str(served.socket("db")))
    yield flight
    flight.client.close()


def test_force_answers_what_is_under_way(served: Daemon, flight: Flight) -> None:
    taker = served.forebay.start("volume", "detach", "db", "--keep", "--force", name="taker")
    flight.ends()
    taker.succeeds()
    served.stop()


def test_stop_answers_what_is_under_way(served: Daemon, flight: Flight) -> None:
    served.running.signal(signal.SIGTERM)
    flight.ends()
    assert served.running.wait() == 0, served.running.tail()
    served.start()
    served("volume", "detach", "db")
    served.stop()


# --- Volumes as files.


@pytest.fixture
def file(daemon: Daemon, devices: Devices, folder: Path, fuse: None) -> Path:
    """Volume `file` as a file."""
    del fuse
    sparse(folder / "file.img", 128 * MIB)
    daemon.configure(f'[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n')
    daemon.start()
    home = folder / "home"
    home.mkdir()
    devices.at_exit(lambda: run(["umount", "-l", home], ok=False))
    export = ["--export", f"fuse:{home}/disk.img"]
    daemon("volume", "attach", "file", "--pool", "fast", "--backing", f"file:{folder}/file.img", *export)
    return home / "disk.img"


def test_open_file_is_in_the_way(daemon: Daemon, file: Path) -> None:
    with file.open("r+b", buffering=0) as opened:
        assert daemon.volume("file")["connections"] == 1
        daemon.refused("volume.in-use", "volume", "detach", "file", mentions=["file", file, "fuser"])
        assert opened.write(b"data") == 4
    daemon("volume", "detach", "file")
    daemon.stop()


def test_mounted_file_system_is_in_the_way(daemon: Daemon, devices: Devices, folder: Path, file: Path) -> None:
    """One that is mounted from the file, and writes."""
    need("mkfs.ext4", "losetup")
    loop = devices.loop(file)
    run(["mkfs.ext4", "-q", loop])
    at = devices.mount(str(loop), at=folder / "mnt")
    writing = ["sh", "-c", f"echo begun; while echo more >>{at}/log; do :; done"]
    writer = Process(writing, folder / "writer.err")
    daemon.refused("volume.in-use", "volume", "detach", "file", mentions=["file", file])
    writer.kill()
    unmount(at, loop)
    run(["losetup", "--detach", loop])
    daemon("volume", "detach", "file")
    daemon.stop()


def test_force_takes_an_open_file_away(daemon: Daemon, file: Path) -> None:
    with file.open("r+b", buffering=0) as opened:
        daemon("volume", "detach", "file", "--force")
        assert not file.exists(), "the file is still there"
        with pytest.raises(OSError):
            opened.write(b"data")
    daemon.stop()

"""Uses of many files at once, each of which may hang.

python -m harness.crowd each FILE...    writes, reads and flushes each file from a process of its own
python -m harness.crowd crowd NBD_SOCKET EXPORT FILE UNTIL
                                        takes all memory that it can get, until the file UNTIL is there"""

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from .nbd import READ, Client
from .process import Process
from .waiting import eventually

E2E = Path(__file__).resolve().parents[1]
CLIENTS_MAX = 80


def use(path: str) -> None:
    """Large and small requests; what is read is what was written."""
    fd = os.open(path, os.O_RDWR)
    for length in (4096, 1 << 20, 1000):
        data = os.urandom(length)
        for at in (0, 5 << 20, 4321):
            assert os.pwrite(fd, data, at) == length
            assert os.pread(fd, length, at) == data
    os.fsync(fd)


def each(paths: list[str]) -> None:
    """A child for each file; it says which ones fail. One that hangs is found by who waits for this program."""
    children = {}
    for path in paths:
        child = os.fork()
        if child == 0:
            use(path)
            os._exit(0)
        children[child] = path
    bad = False
    for _ in paths:
        child, status = os.wait()
        print(children.pop(child), "failed" if status else "answered", flush=True)
        bad = bad or status != 0
    sys.exit(1 if bad else 0)


def over_fuse(file: str) -> None:
    fd = os.open(file, os.O_RDWR)
    data = os.urandom(1 << 20)
    at = 0
    while True:
        os.pwrite(fd, data, at % 32 << 20)
        at += 1


def crowd(path: str, export: str, file: str, until: str) -> None:
    """Writes of the longest kind over a file; reads of the longest kind over NBD, whose answers are never taken."""
    for _ in range(24):
        threading.Thread(target=over_fuse, args=(file,), daemon=True).start()
    clients = []
    while not Path(until).exists():
        if len(clients) < CLIENTS_MAX:
            try:
                client = Client(path, export, timeout=60)
                for cookie in range(8):
                    client.request(READ, cookie, 0, 32 << 20)
                clients.append(client)
            except Exception as error:
                print(error)
            print(f"{len(clients)} clients", flush=True)
        time.sleep(0.3)
    os._exit(0)


class Crowd:
    """The crowd in the background."""

    def __init__(self, folder: Path, socket: Path, export: str, file: Path) -> None:
        self.until = folder / "crowd-until"
        program = [sys.executable, "-m", "harness.crowd", "crowd"]
        self.process = Process([*program, str(socket), export, file, self.until], folder / "crowd.err", cwd=E2E)
        eventually(lambda: "5 clients" in self.process.stdout() or not self.process.is_running, 60, "there is a crowd")
        assert self.process.is_running, self.process.tail()

    def finish(self) -> None:
        assert self.process.is_running, f"the crowd ended early: {self.process.tail()}"
        self.until.touch()
        self.process.succeeds()


def all_answered(folder: Path, files: Iterable[Path], seconds: float = 90) -> None:
    """Each file is written, read and flushed: none of them hangs or fails."""
    process = Process([sys.executable, "-m", "harness.crowd", "each", *files], folder / "each.err", cwd=E2E)
    process.succeeds(seconds)


if __name__ == "__main__":
    if sys.argv[1] == "each":
        each(sys.argv[2:])
    else:
        crowd(*sys.argv[2:])

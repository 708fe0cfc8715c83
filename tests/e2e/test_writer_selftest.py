"""The writer that judges the other tests (harness/oracle.py) must notice a lost write, a write that comes back, and a
torn sector. Against nbdkit, so that it does not depend on what it judges."""

import re
import shutil
import time
from pathlib import Path

import pytest
from harness.clients import need
from harness.devices import MIB, sparse
from harness.oracle_run import Oracle
from harness.process import Process
from harness.waiting import eventually


class Store:
    """A file that nbdkit serves."""

    def __init__(self, folder: Path) -> None:
        need("nbdkit")
        self.folder = folder
        self.file = sparse(folder / "store.img", 8 * MIB)
        self.socket = folder / "nbd.sock"
        self.oracle = Oracle(folder, self.socket, "vol")

    def serve(self) -> Process:
        self.socket.unlink(missing_ok=True)
        command = ["nbdkit", "--foreground", "--exportname=vol", "--unix", str(self.socket), "file", str(self.file)]
        process = Process(command, self.folder / "nbdkit.err")
        eventually(self.socket.is_socket, 30, "nbdkit listens")
        return process


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(folder)


def test_losses_and_torn_sectors_are_noticed(store: Store, folder: Path) -> None:
    nbdkit, oracle = store.serve(), store.oracle
    oracle.write(seconds=1)
    old = shutil.copy(store.file, folder / "old")
    oracle.verify()
    oracle.write(seconds=1, seed=2)
    oracle.verify()
    oracle.verify_file(store.file)
    new = Path(shutil.copy(store.file, folder / "new"))

    shutil.copyfile(old, store.file)
    with pytest.raises(AssertionError, match="expected stamp"):
        oracle.verify_file(store.file, "with lost writes")

    shutil.copyfile(new, store.file)
    # The first sector that is not zeroes: half of it.
    written = re.search(rb"[^\0]", new.read_bytes())
    assert written
    with store.file.open("r+b") as file:
        file.seek(written.start() // 512 * 512 + 256)
        file.write(bytes(256))
    with pytest.raises(AssertionError, match="torn inside"):
        oracle.verify_file(store.file, "with a torn sector")
    nbdkit.kill()


def test_writes_under_way_at_a_crash(store: Store) -> None:
    """They may be there or not, but not change afterwards; the writer does not write again before it has verified."""
    nbdkit, oracle = store.serve(), store.oracle
    load = oracle.load(seed=3, depth=64)
    time.sleep(1)
    nbdkit.kill()
    load.succeeds()
    under_way = int(load.stdout().rpartition(": ")[2])
    nbdkit = store.serve()
    if under_way:
        with pytest.raises(AssertionError, match="run `verify` after a crash"):
            oracle.load(seconds=1)
    oracle.verify()
    oracle.verify()
    nbdkit.kill()

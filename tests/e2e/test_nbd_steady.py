"""Clients that have much under way and take their answers slowly, but all the time, want more memory than there is:
none of them is disconnected, each gets what it has asked for, and others are served beside them."""

import sys
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.process import Process

E2E = Path(__file__).resolve().parent
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "128MiB" }}]
buffer_memory = "192MiB"

[volume.db]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["nbd+unix:///db?socket={folder}/db.sock"]
"""


@pytest.mark.heavy
def test_steady_clients_are_not_disconnected(daemon: Daemon, folder: Path) -> None:
    sparse(folder / "disk.img", 256 * MIB)
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    command = [sys.executable, "-m", "harness.steady", str(daemon.socket("db")), "db"]
    Process(command, folder / "steady.err", cwd=E2E).succeeds(150)
    assert not daemon.events("client.refused")
    daemon.stop()

"""A flush of a backing store that fails though no client has asked for it: the daemon flushes a second after a write
past the cache. What that write was may be lost, so the next FLUSH fails, once, or a stop names the volume (I82)."""

from pathlib import Path

import pytest
from harness.clients import need
from harness.daemon import Daemon
from harness.devices import MIB, Devices, Mapped
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import NotInTime, eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "{disk.path}"
exports = ["{export}"]
mode = "writethrough"
"""
BLOCK = 4096


def has_failed(daemon: Daemon) -> bool:
    """The last flush of the disk has failed."""
    return "flush of" in (daemon.volume("db")["backing_why"] or "")


def flush_fails(daemon: Daemon, disk: Mapped, client: Client) -> None:
    """A flush fails that no client has asked for."""
    assert not has_failed(daemon)
    for _ in range(10):
        assert client.call(WRITE, MIB, BLOCK, b"\x5a" * BLOCK)[0] == 0
        disk.becomes("flakey")
        try:
            # If the daemon had flushed already there is nothing to be flushed.
            eventually(lambda: has_failed(daemon), 5, "the flush of the daemon fails")
        except NotInTime:
            continue
        else:
            return
        finally:
            disk.becomes("linear")
    raise AssertionError("the daemon has flushed each time before the disk failed")


@pytest.mark.guest("ublk")
@pytest.mark.limit(300)
def test_flush_that_no_client_asked_for_fails(daemon: Daemon, devices: Devices, folder: Path, root: None) -> None:
    del root
    need("dmsetup", "losetup")
    disk = Mapped(folder, devices, "disk", 64 * MIB)
    daemon.configure(CONFIG.format(folder=folder, disk=disk, export=daemon.nbd("db")))
    daemon.start()
    with Client(str(daemon.socket("db")), "db") as client:
        flush_fails(daemon, disk, client)
        assert client.call(FLUSH)[0] != 0, "no FLUSH told"
        assert client.call(FLUSH)[0] == 0, "it is told once"
        assert client.call(WRITE, MIB, BLOCK, b"\xa5" * BLOCK)[0] == 0
        assert client.call(FLUSH)[0] == 0
        assert client.call(READ, MIB, BLOCK)[1] == b"\xa5" * BLOCK

    # One of two clients is told.
    with Client(str(daemon.socket("db")), "db") as client, Client(str(daemon.socket("db")), "db") as other:
        flush_fails(daemon, disk, client)
        assert other.call(FLUSH)[0] != 0, "no FLUSH told"
        assert client.call(FLUSH)[0] == 0, "it is told once"

    # A detach fails once, and changes nothing.
    with Client(str(daemon.socket("db")), "db") as client:
        flush_fails(daemon, disk, client)
    daemon.refused("backing.unreadable", "volume", "detach", "db", mentions=["db"])
    assert daemon.volume("db")["state"] == "serving"

    # A stop names the volume.
    with Client(str(daemon.socket("db")), "db") as client:
        flush_fails(daemon, disk, client)
    daemon.stop()
    closed = daemon.logged("pool.closed", ["db"])
    assert closed.severity == "warning", closed

"""A backing store that takes no more data for a while: nothing fails for the client, the alarm is raised, and dirty
data is kept. When there is room again it is written back, and the alarm is cleared."""

from pathlib import Path
from typing import Any

from harness.clients import need, qemu_io
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "256MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{store}"
exports = ["{export}"]
"""


def test_full_backing_store_delays_writeback(daemon: Daemon, devices: Devices, folder: Path) -> None:
    """48 MiB for a backing store that has room for 16."""
    need("qemu-io")
    small = devices.tmpfs("small", "16M")
    store = sparse(small / "disk.img", 64 * MIB)
    uri = daemon.nbd("db")
    daemon.configure(CONFIG.format(folder=folder, store=store, export=uri))
    daemon.start()
    qemu_io(uri, "write -P 0x51 0 24M", "write -P 0x52 24M 24M", "flush")
    flush = daemon.forebay.start("flush", "db", name="flush")
    daemon.alarmed("destage.failed")

    def flush_job() -> Any:
        return next(job for job in daemon.api.get("/v1/jobs") if job["kind"] == "flush")

    eventually(lambda: flush_job()["errors"] or not flush.is_running, 30, "the flush meets errors")
    assert flush_job()["state"] != "completed", "the flush of a full backing store succeeded"
    assert daemon.volume("db")["dirty_bytes"] > 0
    assert len([alarm for alarm in daemon.alarms() if alarm["condition"] == "destage.failed"]) == 1
    qemu_io(uri, "read -P 0x51 0 24M", "read -P 0x52 24M 24M")
    flush.kill()

    run(["mount", "-o", "remount,size=96M", str(small)])
    eventually(lambda: daemon("flush", "db", ok=False).code == 0, 60, "it is written back")
    daemon.quiet("destage.failed")
    with store.open("rb") as file:
        assert file.read(24 * MIB) == b"\x51" * 24 * MIB
        assert file.read(24 * MIB) == b"\x52" * 24 * MIB
    daemon.stop()

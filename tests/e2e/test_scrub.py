"""Bytes of the cache file change at rest, some in a clean block and some in a dirty one. A scrub finds both, fetches
the clean one from the backing store, and reports the dirty one, whose sectors answer with errors. No wrong data is
read."""

from pathlib import Path
from typing import Any

import pytest
from harness.clients import need, qemu_io, write_pattern
from harness.command import Result, run
from harness.daemon import Daemon
from harness.devices import MIB, sparse, spoil
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "256MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["{export}"]
dirty_low_pct = 70
dirty_high_pct = 80
idle_delay = "1h"
"""
SCRUB = ["pool", "scrub", "fast", "--rate", "1GiB"]


@pytest.fixture
def uri(daemon: Daemon, folder: Path) -> str:
    """A volume with 8 MiB clean, 8 MiB dirty."""
    need("qemu-io")
    sparse(folder / "disk.img", 64 * MIB)
    export = daemon.nbd("db")
    daemon.configure(CONFIG.format(folder=folder, export=export))
    daemon.start()
    write_pattern(export, 0x61, "0", "8M")
    daemon("flush", "db")
    write_pattern(export, 0x62, "8M", "8M")
    return export


def scrub_job(daemon: Daemon) -> Any:
    """The newest scrub."""
    return [job for job in daemon.api.get("/v1/jobs") if job["kind"] == "scrub"][-1]


def damaged_events(daemon: Daemon) -> list[Any]:
    """Reports of scrubs that found damage."""
    return [event for event in daemon.events("pool.scrubbed") if event["severity"] == "warning"]


def reads_no_wrong_data(result: Result) -> None:
    assert "verification failed" not in result.stdout, f"wrong data: {result.describe()}"


def test_scrub_of_sound_cache_compares_all(uri: str, daemon: Daemon) -> None:
    del uri
    daemon(*SCRUB)
    job = scrub_job(daemon)
    assert job["state"] == "completed", job
    assert job["bytes_total"] == 16 * MIB, job
    assert job["bytes_left"] == 0, job
    assert job["errors"] == 0, job
    assert damaged_events(daemon) == []
    daemon.stop()


def test_damaged_clean_block_is_fetched_again(uri: str, daemon: Daemon, folder: Path) -> None:
    spoil(folder / "flash.img", 0x61, only_first=True)
    daemon(*SCRUB)
    eventually(lambda: len(damaged_events(daemon)) == 1, 20, "an event of the scrub that found damage")
    assert daemon.volume("db")["lost_bytes"] == 0
    assert daemon.alarm("block.lost") is None
    daemon(*SCRUB)
    assert len(damaged_events(daemon)) == 1, "it is damaged still"
    qemu_io(uri, "read -P 0x61 0 8M", "read -P 0x62 8M 8M")
    daemon.stop()


def test_damaged_dirty_block_is_reported(uri: str, daemon: Daemon, folder: Path) -> None:
    spoil(folder / "flash.img", 0x62, only_first=True)
    daemon.refused("scrub.damage", *SCRUB, mentions=["4KiB"])
    alarm = daemon.alarmed("block.lost", volume="db")
    assert all(value in alarm["message"] for value in ("4KiB", "8388608")), alarm
    (lost,) = daemon.api.get("/v1/volumes/db/losses")
    assert (lost["offset_bytes"], lost["bytes"]) == (8 * MIB, 4096), lost
    # Read-only, or qemu-io ends with a FLUSH.
    read = run(["qemu-io", "-r", "-f", "raw", "-c", "read -P 0x62 8M 8M", uri], ok=False)
    assert read.code != 0, f"what is lost was read: {read.describe()}"
    reads_no_wrong_data(read)
    flush = qemu_io(uri, "flush", ok=False)
    assert flush.code != 0, "no FLUSH told of the loss"
    qemu_io(uri, "write -P 0x63 8M 8M", "flush", "read -P 0x63 8M 8M")
    daemon(*SCRUB)
    daemon.quiet("block.lost")
    daemon.stop()


def test_scrub_can_be_cancelled(uri: str, daemon: Daemon) -> None:
    """Only one runs at a time."""
    del uri
    id = daemon.json("pool", "scrub", "fast", "--rate", "64KiB", "--background")["id"]
    daemon.refused("job.conflict", "pool", "scrub", "fast", mentions=["fast"])
    daemon.refused("pool.scrub-rate", "pool", "scrub", "fast", "--rate", "1KiB", code=(1, 2))
    daemon("jobs", id, "--cancel")
    eventually(lambda: daemon.api.get(f"/v1/jobs/{id}")["state"] == "cancelled", 30, "the scrub is cancelled")
    daemon(*SCRUB)
    daemon.stop()

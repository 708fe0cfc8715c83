"""Events outlive the daemon: an operator sees in the morning what happened in the night, with restarts in between."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = []
"""


def history(daemon: Daemon, *options: object) -> list[Any]:
    return [json.loads(line) for line in daemon("events", "--since", "1h", "--json", *options).stdout.splitlines()]


def runs(events: list[Any]) -> set[str]:
    return {event["id"].split("-")[0] for event in events}


def test_events_of_earlier_runs(daemon: Daemon, folder: Path) -> None:
    """After kill -9 and an upgrade: in order, filtered, and not older than asked for."""
    sparse(folder / "db.img", 32 * MIB)
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    daemon("set", "db", "dirty_high_pct=44")
    eventually(lambda: history(daemon, "--kind", "volume.setting-changed"), 10, "the change is in the files")
    daemon.kill()
    daemon.start()
    eventually(lambda: len(history(daemon, "--kind", "volume.attached")) == 2, 10, "both starts are in the files")
    daemon("upgrade")
    eventually(lambda: history(daemon, "--kind", "daemon.upgraded"), 10, "the upgrade is in the files")
    events = history(daemon)
    times = [event["time_unix_ns"] for event in events]
    assert times == sorted(times) and len(runs(events)) == 3, events
    changed = [event for event in events if event["kind"] == "volume.setting-changed"]
    assert [event["details"]["to"] for event in changed] == ["44"], changed
    assert all(event["volume"] == "db" for event in history(daemon, "--volume", "db"))
    assert "dirty_high_pct" in daemon("events", "--since", "1h", "--volume", "db").stdout
    # The whole second counts that the time is in.
    assert daemon("events", "--since", "2038-01-01T00:00:00Z").stdout == ""
    for wrong in ("yesterday", "5", "-1h"):
        daemon("events", f"--since={wrong}", ok=False)
    kept = daemon.state_dir / "events/events.jsonl"
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.parent.stat().st_mode & 0o777 == 0o700
    successor = daemon.api.get("/v1/daemon")["pid"]
    os.kill(successor, signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{successor}").exists(), 30, "the successor has ended")


def test_files_that_cannot_be_written_hold_up_nothing(
    daemon: Daemon, devices: Devices, folder: Path, root: None
) -> None:
    """The state directory is full: the daemon serves, tells it once, and writes again when there is room."""
    del root
    sparse(folder / "db.img", 32 * MIB)
    daemon.state_dir.mkdir()
    devices.tmpfs(daemon.state_dir.name, "256k")
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    fill = daemon.state_dir / "fill"
    with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    # Until a page of the file is full there is room in it.
    for number in range(30, 60):
        daemon("set", "db", f"dirty_high_pct={number}", "--temporary")
    daemon.logged("state.unwritable", ["events"])
    fill.unlink()
    daemon("set", "db", "dirty_high_pct=61", "--temporary")
    changes = ["--kind", "volume.setting-changed"]
    newest = lambda: history(daemon, *changes)[-1]["details"]["to"]  # noqa: E731
    eventually(lambda: newest() == "61", 10, "events are written again")
    daemon.stop()

"""`forebay iostat` and `forebay list`: the figures are those of the clients, volumes come and go while they run, and a
reader that has seen enough ends the command."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from harness.clients import need, write_pattern
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.waiting import eventually

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{db}"]
idle_delay = "off"

[volume.log]
pool = "fast"
backing = "file:{folder}/log.img"
exports = ["{log}"]
idle_delay = "off"
"""


@pytest.fixture
def served(daemon: Daemon, folder: Path) -> Daemon:
    need("qemu-io")
    for name in ("db", "log"):
        sparse(folder / f"{name}.img", 64 * MIB)
    daemon.configure(CONFIG.format(folder=folder, db=daemon.nbd("db"), log=daemon.nbd("log")))
    daemon.start()
    return daemon


def test_figures_are_those_of_the_clients(served: Daemon, folder: Path) -> None:
    write_pattern(served.nbd("db"), 0x11, "0", "8M")
    report = served.json("iostat")
    seconds = served.api.get("/v1/volumes/db/stats")["uptime_ns"] / 1e9
    written = report["volumes"]["db"]["written_bytes_per_s"] * seconds
    assert 8 * MIB * 0.5 < written < 8 * MIB * 1.5, report
    assert report["volumes"]["log"]["written_bytes_per_s"] == 0, report
    assert report["pools"]["fast"]["dirty_bytes"] == report["volumes"]["db"]["dirty_bytes"] == 8 * MIB
    (row,) = [row for row in served.json("list")["volumes"] if row["volume"] == "db"]
    assert (row["disk"], row["dirty_bytes"], row["used_at"]) == (str(folder / "db.img"), 8 * MIB, []), row
    served.stop()


def test_volumes_come_and_go(served: Daemon) -> None:
    watch = served.forebay.start("iostat", "200ms", "--json", name="watch")

    def last() -> list[str]:
        """The volumes of the last report."""
        reports = watch.stdout().splitlines(keepends=True)
        whole = [report for report in reports if report.endswith("\n")]
        return list(json.loads(whole[-1])["volumes"]) if whole else []

    eventually(lambda: last() == ["db", "log"], 30, "both volumes are reported")
    served("volume", "detach", "log")
    eventually(lambda: last() == ["db"], 30, "the detached volume is not reported")
    watch.signal(signal.SIGINT)
    assert watch.wait() == 0, watch.tail()
    assert len(served("iostat", "100ms", "3", "--json").stdout.splitlines()) == 3
    served.refused("volume.unknown", "iostat", "--volume", "log", mentions=["log"])
    served.refused("cli.argument", "iostat", "0", code=2, mentions=["10ms"])
    served.stop()


@pytest.mark.parametrize(
    "command", [["iostat", "100ms"], ["stats", "db", "--interval", "100ms"], ["events", "--follow"]]
)
def test_closed_pipe_ends_a_watch(served: Daemon, command: list[str]) -> None:
    with subprocess.Popen([served.forebay.binary, *command], stdout=subprocess.PIPE, env=served.forebay.env) as watch:
        assert watch.stdout is not None
        if command[0] == "events":
            served("set", "db", "dirty_high_pct=60")
        assert watch.stdout.read(1)
        watch.stdout.close()
        if command[0] == "events":
            served("set", "db", "dirty_high_pct=61")
        assert watch.wait(30) == 0
    served.stop()


def test_watches_outlast_a_daemon_that_does_not_answer(served: Daemon) -> None:
    """As during an upgrade that waits for a slow device: a query takes 10 s at most, and is repeated."""
    watches = [
        served.forebay.start("iostat", "200ms", "4", "--json", name="iostat"),
        served.forebay.start("stats", "db", "--interval", "200ms", "--json", name="stats"),
    ]
    reports = [lambda watch=watch: len(watch.stdout().splitlines()) for watch in watches]
    eventually(lambda: all(count() >= 1 for count in reports), 30, "both report")
    served.running.signal(signal.SIGSTOP)
    refused = served.refused("daemon.no-answer", "list", mentions=["in time"])
    assert "carry out" not in refused.text, "a query changes nothing"
    before = reports[1]()
    served.running.signal(signal.SIGCONT)
    assert watches[0].wait() == 0, watches[0].tail()
    assert reports[0]() == 4
    eventually(lambda: reports[1]() > before, 30, "stats goes on")
    watches[1].signal(signal.SIGTERM)
    served.stop()

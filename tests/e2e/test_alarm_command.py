"""The operator's own program for alarms: it gets each alarm that is raised and each that ends, the daemon never waits
for it, and a program that fails is told of."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness.daemon import Daemon
from harness.waiting import eventually

POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'


def program(folder: Path, name: str, body: str) -> Path:
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


@pytest.fixture
def told(folder: Path) -> Path:
    """What the program has been given: a line for each time."""
    return folder / "told.jsonl"


@pytest.fixture
def teller(folder: Path, told: Path) -> Path:
    return program(folder, "tell", f'cat >> {told}; echo "$1 $FOREBAY_ADMIN" >> {told}.words')


def lines(told: Path) -> list[Any]:
    return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []


def kinds(told: Path) -> list[tuple[str, str]]:
    return [(event["kind"], event["details"]["condition"]) for event in lines(told)]


def command(*words: object) -> str:
    return f"alarm_command = {json.dumps([str(word) for word in words])}"


def break_pool(daemon: Daemon, folder: Path) -> None:
    """The pool is configured and its device is not there: an alarm from the start on."""
    daemon.stop()
    (folder / "flash.img").rename(folder / "away.img")
    daemon.start()


def test_alarms_that_come_and_go_are_passed_on(daemon: Daemon, folder: Path, teller: Path, told: Path) -> None:
    daemon.configure(POOL.format(folder=folder), daemon=command(teller, "db host"))
    daemon.start()
    tested = daemon.json("alarms", "--test")
    assert tested["command"] == [str(teller), "db host"], tested
    assert [event["kind"] for event in lines(told)] == ["alarm.test"]
    assert Path(f"{told}.words").read_text() == f"db host {daemon.admin}\n"
    told.unlink()
    break_pool(daemon, folder)
    eventually(lambda: kinds(told) == [("alarm.raised", "pool.failed")], 10, "it is told of the alarm of the start")
    [event] = lines(told)
    assert event["pool"] == "fast" and event["details"]["message"] == daemon.alarm("pool.failed")["message"], event
    (folder / "away.img").rename(folder / "flash.img")
    daemon.quiet("pool.failed")
    eventually(lambda: kinds(told)[1:] == [("alarm.cleared", "pool.failed")], 10, "it is told of the end")
    daemon.stop()


def test_daemon_waits_for_no_program(daemon: Daemon, folder: Path, told: Path) -> None:
    """One that hangs, and one that prints without end."""
    hangs = program(folder, "hangs", f"yes >&2; echo begun >> {told}; sleep 20")
    daemon.configure(POOL.format(folder=folder), daemon=command(hangs))
    daemon.start()
    break_pool(daemon, folder)
    eventually(told.exists, 10, "the program runs")
    (folder / "away.img").rename(folder / "flash.img")
    daemon.quiet("pool.failed", seconds=10)
    began = time.monotonic()
    daemon.stop()
    assert time.monotonic() - began < 5, "the stop waited for the program"


def test_program_that_fails_has_an_alarm(daemon: Daemon, folder: Path, teller: Path, told: Path) -> None:
    """With what it printed, and not passed to it. A reload takes another program, and a success ends the alarm."""
    fails = program(folder, "fails", f"cat >> {told}; echo mail server is away >&2; exit 7")
    daemon.configure(POOL.format(folder=folder), daemon=command(fails))
    daemon.start()
    daemon.refused("alarm.command-failed", "alarms", "--test", mentions=["exit code 7: mail server is away"])
    alarm = daemon.alarmed("alarm.command-failed")
    assert "mail server is away" in alarm["message"] and "forebay alarms --test" in alarm["message"], alarm
    assert [event["kind"] for event in lines(told)] == ["alarm.test"]
    daemon.configure(POOL.format(folder=folder), daemon=command(teller))
    assert daemon.json("reload")["changed"] == ["alarm_command"]
    daemon("alarms", "--test")
    daemon.quiet("alarm.command-failed")
    daemon.configure(POOL.format(folder=folder))
    daemon("reload")
    daemon.refused("alarm.no-command", "alarms", "--test", mentions=["forebay reload"])
    for wrong in ('"/bin/true"', '["true"]', "[]", "[1]"):
        daemon.configure(POOL.format(folder=folder), daemon=f"alarm_command = {wrong}")
        daemon.forebay("config", "check", daemon.config_path, ok=False)
    daemon.stop()


@pytest.mark.parametrize("way", ["upgrade", "restart"])
def test_alarm_continues_after(way: str, daemon: Daemon, folder: Path, teller: Path, told: Path) -> None:
    """It keeps its acknowledgement and its time, and is passed on once."""
    daemon.configure(POOL.format(folder=folder), daemon=command(teller))
    daemon.start()
    break_pool(daemon, folder)
    before = daemon.alarm("pool.failed")
    daemon("alarms", "--acknowledge", before["id"], "--by", "eva")
    eventually(lambda: kinds(told) == [("alarm.raised", "pool.failed")], 10, "it is told of the alarm")
    if way == "upgrade":
        daemon("upgrade")
    else:
        daemon.restart()
    pid = daemon.api.get("/v1/daemon")["pid"]
    after = daemon.alarm("pool.failed")
    assert after["acknowledged"]["by"] == "eva" and after["raised"] == before["raised"], after
    (folder / "away.img").rename(folder / "flash.img")
    eventually(lambda: not daemon.api.get("/v1/alarms")["alarms"], 20, "the alarm ends")
    ends = [("alarm.raised", "pool.failed"), ("alarm.cleared", "pool.failed")]
    eventually(lambda: kinds(told)[-1:] == ends[1:], 10, "it is told of the end")
    assert kinds(told) == ends, "the alarm that continues is not passed on again"
    os.kill(pid, signal.SIGTERM)

    def has_ended() -> bool:
        return not Path(f"/proc/{pid}").exists() or (way == "restart" and not daemon.running.is_running)

    eventually(has_ended, 30, "the daemon has ended")

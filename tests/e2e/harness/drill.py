"""Kills and upgrades a daemon while it is used, and measures what a client sees of it.

    python -m harness.drill --folder F --socket S --export E --admin A --forebay BINARY [--kills N] [--upgrades N]
        [--rest SECONDS] [--seed N] [--json FILE]

F/main.pid is the process of the daemon (see service_manager.py). A probe reads and writes one block after the other;
when its connection ends it connects again, as clients do that can. A pause is the longest time between two answers
around a kill or an upgrade. During an upgrade the probe must keep its connection, and it must never read anything but
what it wrote."""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import struct
import sys
import threading
import time
from pathlib import Path

from .api import Api
from .command import Forebay
from .nbd import FLAG_FUA, READ, WRITE, Client, Disconnected
from .waiting import SLOWNESS, eventually

BLOCK = 4096


class Probe(threading.Thread):
    """One client, one request at a time."""

    def __init__(self, socket: str, export: str) -> None:
        super().__init__(daemon=True)
        self.socket, self.export = socket, export
        self.lock = threading.Lock()
        self.longest = 0.0
        self.answers = self.reconnects = 0
        self.trouble: str | None = None
        self.ending = False

    def run(self) -> None:
        try:
            self.probe()
        except BaseException as error:  # whatever fails here must end the drill
            self.trouble = f"{type(error).__name__}: {error}"

    def probe(self) -> None:
        client, last, turn = None, time.monotonic(), 0
        while not self.ending:
            try:
                client = client or Client(self.socket, self.export)
                turn += 1
                # The last blocks of the volume are the probe's.
                at = client.size - BLOCK * (1 + turn % 16)
                data = struct.pack("<Q", turn) * (BLOCK // 8)
                assert client.call(WRITE, at, BLOCK, data, FLAG_FUA if turn % 4 == 0 else 0)[0] == 0, "a write failed"
                error, found = client.call(READ, at, BLOCK)
                assert error == 0, f"a read failed: {error}"
                assert found == data, f"wrong data: {found[:16]!r} instead of turn {turn}"
            except (Disconnected, ConnectionError, FileNotFoundError):
                client = None
                with self.lock:
                    self.reconnects += 1
                time.sleep(0.002)
                continue
            now = time.monotonic()
            with self.lock:
                self.longest = max(self.longest, now - last)
                self.answers += 1
            last = now
            time.sleep(0.001)

    def begin(self) -> tuple[int, int]:
        with self.lock:
            self.longest = 0.0
            return self.answers, self.reconnects

    def await_answers(self, after: int, within: float) -> tuple[float, int]:
        """Waits for some answers more than `after`: the longest pause, and how often it has connected again."""
        until = time.monotonic() + within * SLOWNESS
        while time.monotonic() < until:
            with self.lock:
                if self.answers > after + 3:
                    return self.longest, self.reconnects
            if self.trouble:
                raise SystemExit(f"the probe: {self.trouble}")
            time.sleep(0.005)
        raise SystemExit(f"no answer within {within} s")


def main_pid(folder: Path) -> int:
    return int((folder / "main.pid").read_text())


def kill(folder: Path) -> None:
    def killed() -> bool:
        with contextlib.suppress(ProcessLookupError):  # the file may be a moment behind
            os.kill(main_pid(folder), signal.SIGKILL)
            return True
        return False

    eventually(killed, 30, "there is a daemon to be killed")


def upgrade(admin: Path, binary: Path) -> None:
    """A successor takes over from the daemon. After a kill it may not answer yet: that is no failed upgrade."""

    def answers() -> bool:
        try:
            Api(admin).get("/v1/daemon")
        except OSError:
            return False
        return True

    command = Forebay(admin.parent, admin=admin, binary=binary)
    eventually(answers, 60, "the daemon answers")
    done = command("upgrade", "--json", seconds=200)
    assert done.json()["error"] is None, done.describe()


def drill(options: argparse.Namespace) -> tuple[dict[str, list[float]], Probe]:
    chance = random.Random(options.seed)
    events = ["kill"] * options.kills + ["upgrade"] * options.upgrades
    chance.shuffle(events)
    probe = Probe(options.socket, options.export)
    probe.start()
    probe.await_answers(0, 30)
    pauses: dict[str, list[float]] = {"kill": [], "upgrade": []}
    for number, event in enumerate(events, 1):
        time.sleep(chance.uniform(options.rest / 2, options.rest * 3 / 2))
        after, reconnects = probe.begin()
        if event == "upgrade":
            upgrade(options.admin, options.forebay)
            with probe.lock:
                after = probe.answers
        else:
            kill(options.folder)
            time.sleep(0.05)  # what was answered before the kill does not count
            after = max(after, probe.answers)
        pause, reconnected = probe.await_answers(after, 60)
        if event == "upgrade" and reconnected != reconnects:
            raise SystemExit(f"upgrade {number}: the probe lost its connection")
        pauses[event].append(pause * 1000)
        print(f"{number}/{len(events)} {event}: {pause * 1000:.0f} ms", flush=True)
    probe.ending = True
    probe.join(30)
    if probe.trouble:
        raise SystemExit(f"the probe: {probe.trouble}")
    return pauses, probe


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ["socket", "export"]:
        parser.add_argument(f"--{name}", required=True)
    for name in ["folder", "admin", "forebay"]:
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--upgrades", type=int, default=3)
    parser.add_argument("--rest", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pauses, probe = drill(options)
    result: dict[str, object] = {"answers": probe.answers, "reconnects": probe.reconnects, "errors": 0, "wrong": 0}
    for event, times in pauses.items():
        if times:
            median, most = statistics.median(times), max(times)
            result[event] = {"count": len(times), "median_ms": round(median, 1), "max_ms": round(most, 1)}
            print(f"{len(times)} times {event}: pause median {median:.0f} ms, longest {most:.0f} ms")
    if options.json:
        options.json.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

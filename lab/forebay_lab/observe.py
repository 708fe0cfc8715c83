"""What happens while a client runs: its own lines, and beside each what the block device and the processors did since.

The client prints a line for each interval; that line is the clock, so all figures of a sample are of the same time.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .experiment import Refused
from .ledger import Ledger
from .servers import TAIL

Sample = dict[str, float]
CORES = os.cpu_count() or 1
# Columns of all samples: rates of the block device, shares of the processors.
MEANS = ("reads_s", "writes_s", "cpu", "iowait", "server_cpu")
# Columns of caches that say what they do: what only they have, the share of read blocks that they had, and traffic.
CACHE = ("dirty_mib", "hits", "disk_read_mib_s", "disk_written_mib_s", "flash_written_mib_s")
# Fields of the first line of /proc/stat.
USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL = range(8)


@dataclass(frozen=True)
class Observed:
    """What a client printed, and a sample for each of its intervals."""

    printed: list[str]
    samples: pd.DataFrame


def processors() -> list[int]:
    """Ticks of all processors together, by what they did."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


class Gauges:
    """What has happened since the last time that somebody asked."""

    def __init__(self, device: Callable[[], Mapping[str, float]]) -> None:
        self.device = device
        self.before = (time.monotonic(), processors(), dict(device()))

    def since(self) -> Sample:
        """Shares of the processors' time, and rates of the device."""
        was, ticks_before, device_before = self.before
        self.before = now, ticks, device = (time.monotonic(), processors(), dict(self.device()))
        used = [after - before for after, before in zip(ticks, ticks_before, strict=True)]
        total, elapsed_s = max(1, sum(used)), max(now - was, 1e-3)
        rates = {name: (device[name] - device_before[name]) / elapsed_s for name in device}
        return {
            "cpu": round(1 - (used[IDLE] + used[IOWAIT]) / total, 4),
            "iowait": round(used[IOWAIT] / total, 4),
            "reads_s": round(rates["reads"], 1),
            "writes_s": round(rates["writes"], 1),
            "read_mib_s": round(rates["read_bytes"] / (1 << 20), 3),
            "written_mib_s": round(rates["written_bytes"] / (1 << 20), 3),
            "server_cpu": round(rates["server_s"] / CORES, 4),
            **(cache_sample(device["dirty_mib"], rates) if "dirty_mib" in device else {}),
        }


def cache_sample(dirty_mib: float, rates: Mapping[str, float]) -> Sample:
    """What a cache did: see `CACHE`."""
    asked = rates["asked_blocks"]
    return {
        "dirty_mib": round(dirty_mib, 1),
        # Nothing was asked: no share.
        "hits": round(rates["found_blocks"] / asked, 4) if asked else math.nan,
        "disk_read_mib_s": round(rates["disk_read_mib"], 3),
        "disk_written_mib_s": round(rates["disk_written_mib"], 3),
        "flash_written_mib_s": round(rates["flash_written_mib"], 3),
    }


def means(samples: pd.DataFrame) -> dict[str, float]:
    """Means of what there is of `MEANS` and `CACHE`."""
    return {name: round(float(samples[name].mean()), 4) for name in (*MEANS, *CACHE) if name in samples}


def observe(
    command: Sequence[str],
    parse: Callable[[str], Sample | None],
    device: Callable[[], Mapping[str, float]],
    ledger: Ledger,
    progress: Callable[[float], None],
    limit_s: float,
) -> Observed:
    """Runs a client to its end; each line that `parse` knows becomes a sample.

    Raises `Refused` with what it said if it fails, or has not ended after `limit_s`: clients wait for ever for a
    database that has stopped answering.
    """
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    entry = ledger.add_process(child.pid)
    printed: list[str] = []
    samples: list[Sample] = []
    gauges = Gauges(device)
    began = time.monotonic()
    assert child.stdout is not None
    watchdog = threading.Timer(limit_s, child.kill)
    watchdog.start()
    try:
        for line in child.stdout:
            printed.append(line.rstrip("\n"))
            found = parse(line)
            if found is not None:
                clock_s = time.monotonic() - began
                samples.append(found | gauges.since() | {"clock_s": round(clock_s, 2)})
                progress(clock_s)
        code = child.wait()
    finally:
        watchdog.cancel()
    ledger.undo(entry)
    if code:
        said = "\n".join(printed)[-TAIL:]
        if code == -signal.SIGKILL and time.monotonic() - began >= limit_s:
            raise Refused(f"{Path(command[0]).name} had not ended after {limit_s:.0f} s: {said}")
        raise Refused(f"{Path(command[0]).name} ended with {code}: {said}")
    return Observed(printed, pd.DataFrame(samples))

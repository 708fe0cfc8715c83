"""Running fio, the client of all benchmarks, and reading what it found.

A run that had any error fails: figures of a target that serves errors are worth nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Failure

PERCENTILES = {"p50_us": "50.000000", "p99_us": "99.000000", "p999_us": "99.900000"}


@dataclass(frozen=True)
class Side:
    """The reads, the writes or the syncs of a run. Latencies are from submission to completion, in microseconds."""

    requests: int
    iops: float
    mbytes_per_s: float
    mean_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float


@dataclass(frozen=True)
class Result:
    """What one fio run reached. Syncs are not counted in `iops`."""

    seconds: float
    read: Side | None
    write: Side | None
    sync: Side | None
    client_cpu_s: float

    @property
    def sides(self) -> list[Side]:
        """Reads and writes, as far as there were any."""
        return [side for side in (self.read, self.write) if side is not None]

    @property
    def iops(self) -> float:
        """Reads and writes a second."""
        return sum(side.iops for side in self.sides)

    @property
    def mbytes_per_s(self) -> float:
        """Megabytes (10^6) a second, both directions together."""
        return sum(side.mbytes_per_s for side in self.sides)

    @property
    def main(self) -> Side:
        """The direction that had more requests: whose percentiles are shown."""
        return max(self.sides, key=lambda side: side.requests)

    @property
    def requests(self) -> int:
        """Everything that the server was asked, syncs included."""
        return sum(side.requests for side in (self.read, self.write, self.sync) if side is not None)

    @property
    def longest_us(self) -> float:
        """The slowest request of any kind."""
        return max(side.max_us for side in (self.read, self.write, self.sync) if side is not None)


def nbd(socket: Path) -> list[str]:
    """Target of fio: an export called `v` on a unix socket."""
    return ["--ioengine=nbd", f"--uri=nbd+unix:///v?socket={socket}"]


def raw(path: Path) -> list[str]:
    """Target of fio: a file without the page cache."""
    return ["--ioengine=io_uring", "--direct=1", f"--filename={path}"]


def flush_after(target: Sequence[str], writes: int) -> list[str]:
    """Options for a flush after so many writes: fdatasync on files; the nbd engine knows only fsync, which is FLUSH."""
    if writes == 0:
        return []
    return [f"--fsync={writes}" if "--ioengine=nbd" in target else f"--fdatasync={writes}"]


def fio(target: Sequence[str], job: Sequence[str], seconds: float = 0) -> Result:
    """Runs one fio job: for `seconds`, or, if that is 0, until everything that the job names is done."""
    command = ["fio", "--name=bench", "--output-format=json", "--lat_percentiles=1", "--percentile_list=50:99:99.9"]
    command += [*target, *job, "--group_reporting"]
    if seconds > 0:
        command += ["--time_based", f"--runtime={round(seconds * 1000)}ms"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 1800, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{' '.join(command)}: not done after {late.timeout:.0f} s") from late
    except OSError as error:
        raise Failure(f"fio cannot be started ({error}): scripts/setup installs it") from error
    said = (done.stderr + done.stdout[: done.stdout.find("{")]).strip()
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: exit code {done.returncode}: {said}")
    return parse(done.stdout, " ".join(command))


def parse(text: str, command: str) -> Result:
    """What fio's JSON says; `command` is for messages."""
    report: dict[str, Any] = json.loads(text[text.index("{") :])["jobs"][0]
    if report["error"] != 0 or report.get("total_err", 0) != 0:
        raise Failure(f"{command}: error {report['error']} while it ran")
    result = Result(
        seconds=max(report["read"]["runtime"], report["write"]["runtime"]) / 1e3,
        read=side(report["read"]),
        write=side(report["write"]),
        sync=sync(report.get("sync", {})),
        client_cpu_s=(report["usr_cpu"] + report["sys_cpu"]) / 100 * report["job_runtime"] / 1e3,
    )
    if not result.sides:
        raise Failure(f"{command}: not one request was completed")
    return result


def side(report: dict[str, Any]) -> Side | None:
    """Reads or writes."""
    if report["total_ios"] == 0:
        return None
    return Side(
        requests=report["total_ios"],
        iops=report["iops"],
        mbytes_per_s=report["bw_bytes"] / 1e6,
        **latencies(report["lat_ns"]),
    )


def sync(report: dict[str, Any]) -> Side | None:
    """FLUSH or fdatasync, if there were any. Their number is that of their latencies: fio does not add up the other."""
    count = report.get("lat_ns", {}).get("N", 0)
    if count == 0:
        return None
    return Side(requests=count, iops=0.0, mbytes_per_s=0.0, **latencies(report["lat_ns"]))


def latencies(report: dict[str, Any]) -> dict[str, float]:
    """Percentiles in microseconds."""
    percentile = report.get("percentile", {})
    found = {name: percentile.get(key, 0) / 1e3 for name, key in PERCENTILES.items()}
    return found | {"mean_us": report["mean"] / 1e3, "max_us": report["max"] / 1e3}

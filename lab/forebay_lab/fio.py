"""fio, as the experiments use it: one job, its totals, and its samples of each second."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .experiment import Lies
from .ledger import Ledger
from .servers import finished


@dataclass(frozen=True)
class Totals:
    """What a job did. Latencies in microseconds, of completion."""

    bytes: int
    operations: int
    seconds: float
    mean_us: float
    p95_us: float
    p99_us: float
    max_us: float

    @property
    def mib_s(self) -> float:
        """Mebibytes per second."""
        return self.bytes / (1 << 20) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Job:
    """What a job gave: totals, and a line for each second with `t_s`, `mib_s`."""

    totals: Totals
    samples: pd.DataFrame


def run(options: Mapping[str, str | int], folder: Path, ledger: Ledger, progress: Callable[[float], None]) -> Job:
    """Runs one job; `options` are those of fio. Ends with `Lies` if it finds wrong data or an error."""
    log = folder / "fio"
    command = ["fio", "--name=lab", "--output-format=json", f"--output={log}.json", f"--write_bw_log={log}"]
    command += ["--log_avg_msec=1000", "--per_job_logs=0", *(f"--{key}={value}" for key, value in options.items())]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ledger.add_process(child.pid)
    said = finished(child, progress)
    if child.returncode:
        raise Lies(f"fio ended with {child.returncode}: {said[-500:]}")
    totals = parse(json.loads(Path(f"{log}.json").read_text()))
    return Job(totals, samples(Path(f"{log}_bw.log")))


def parse(output: Mapping[str, object]) -> Totals:
    """The totals of fio's JSON with `group_reporting`; of a job that verifies what it wrote, those of the reads."""
    jobs = output["jobs"]
    assert isinstance(jobs, list)
    if len(jobs) != 1 or jobs[0]["error"]:
        raise Lies(f"fio reports error {[job['error'] for job in jobs]}")
    sides = [side for side in (jobs[0]["read"], jobs[0]["write"]) if side["total_ios"]]
    if not sides:
        raise Lies("fio did nothing")
    if len(sides) == 2 and sides[0]["io_bytes"] != sides[1]["io_bytes"]:
        raise Lies(f"fio wrote {sides[1]['io_bytes']} bytes and read {sides[0]['io_bytes']} to verify them")
    side = sides[0]
    spread = side["clat_ns"]
    percentiles = spread.get("percentile", {})
    return Totals(
        bytes=side["io_bytes"],
        operations=side["total_ios"],
        seconds=side["runtime"] / 1000,
        mean_us=spread["mean"] / 1000,
        p95_us=percentiles.get("95.000000", 0) / 1000,
        p99_us=percentiles.get("99.000000", 0) / 1000,
        max_us=spread["max"] / 1000,
    )


def samples(log: Path) -> pd.DataFrame:
    """The bandwidth log: lines of milliseconds and KiB/s, among others; of several threads, added up by second."""
    frame = pd.read_csv(log, header=None, usecols=[0, 1], names=["ms", "kib_s"])
    frame["t_s"] = (frame["ms"] / 1000).round().astype(int)
    by_second = frame.groupby("t_s", as_index=False)["kib_s"].sum()
    return pd.DataFrame({"t_s": by_second["t_s"], "mib_s": (by_second["kib_s"] / 1024).round(3)})

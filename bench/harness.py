"""What the benchmarks share: starting and stopping servers by pid, running fio, printing tables.

Everything stays on this machine: files in one temporary folder, unix sockets, bounded run times.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOREBAY = Path(os.environ.get("FOREBAY", ROOT / "target/release/forebay"))
MIB = 1 << 20


class Failure(RuntimeError):
    """A server or client did not do what the benchmark needs."""


@dataclass(frozen=True)
class Result:
    """What one fio run reached, reads and writes together."""

    iops: float
    mbytes_per_s: float
    p50_us: float
    p99_us: float


@contextmanager
def workspace(where: str | None) -> Iterator[Path]:
    """A temporary folder on the disk under test, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=where or os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def process(command: Sequence[str], ready: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Runs a server until the block ends; waits for the socket `ready` to appear first."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(child, ready)
        yield child
    finally:
        stop(child)


def wait_for(child: subprocess.Popen[str], ready: Path | None) -> None:
    """Waits until the socket can be connected to."""
    deadline = time.monotonic() + 120
    while ready is not None and not ready.exists():
        if child.poll() is not None:
            output = child.stdout.read() if child.stdout else ""
            raise Failure(f"{child.args!r} ended with {child.returncode}: {output}")
        if time.monotonic() > deadline:
            raise Failure(f"{child.args!r} did not open {ready}")
        time.sleep(0.02)
    time.sleep(0.1)


def stop(child: subprocess.Popen[str]) -> None:
    """Ends a server by its pid, in an orderly way if it lets us."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def forebay(folder: Path, *, cache: str, mode: str = "writeback", extra: Sequence[str] = ()) -> list[str]:
    """Command line of a daemon on `disk` and `cache` of the folder, socket `forebay.sock`."""
    return [
        str(FOREBAY),
        "run",
        "--backing",
        str(folder / "disk"),
        "--cache",
        cache,
        "--export",
        f"nbd+unix:///v?socket={folder}/forebay.sock",
        "--mode",
        mode,
        *extra,
    ]


def fio(target: Sequence[str], job: Sequence[str], seconds: int) -> Result:
    """Runs one fio job and adds up its reads and writes."""
    command = ["fio", "--name=bench", "--output-format=json", *target, *job, "--group_reporting"]
    if seconds > 0:
        command += ["--time_based", f"--runtime={seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 600, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr or done.stdout}")
    report = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    sides = [report[side] for side in ("read", "write") if report[side]["total_ios"] > 0]
    main = max(sides, key=lambda side: side["total_ios"])
    percentiles = main["clat_ns"].get("percentile", {})
    return Result(
        iops=sum(side["iops"] for side in sides),
        mbytes_per_s=sum(side["bw_bytes"] for side in sides) / 1e6,
        p50_us=percentiles.get("50.000000", 0) / 1e3,
        p99_us=percentiles.get("99.000000", 0) / 1e3,
    )


def nbd(socket: Path) -> list[str]:
    """Target of fio: an export on a unix socket."""
    return ["--ioengine=nbd", f"--uri=nbd+unix:///v?socket={socket}"]


def raw(path: Path) -> list[str]:
    """Target of fio: a file without the page cache."""
    return ["--ioengine=io_uring", "--direct=1", f"--filename={path}"]


def pressure() -> str:
    """CPU pressure of the last ten seconds: how far figures can be trusted."""
    try:
        return Path("/proc/pressure/cpu").read_text().split("avg10=")[1].split()[0] + " %"
    except (OSError, IndexError):
        return "unknown"


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "kernel": platform.release(),
        "cores": str(os.cpu_count()),
        "commit": commit.stdout.strip(),
        "cpu_pressure_avg10": pressure(),
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown whose columns line up."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in [header, *rows]]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)

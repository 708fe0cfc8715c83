"""Figures of one measurement, read from what the guest left, and a table of many."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import guest

WINDOW_S = 5


class Unreadable(RuntimeError):
    """The guest left something that is no result."""


@dataclass(frozen=True)
class Figures:
    """What one run reached. Times in microseconds unless named otherwise."""

    mode: str
    job: str
    warm_ios: int
    iops: float
    first_5s: float
    last_10s: float
    window_cv: float
    read: dict[str, float]
    write: dict[str, float]
    max_ms: float
    hit_pct: float | None
    arm: dict[str, float]
    cpu_pressure_pct: float
    warm_iops: float
    wall_s: float
    settings: Sequence[str] = ()
    export: str = ""
    note: str = ""
    per_second: list[int] = field(default_factory=list)

    def json(self) -> str:
        """One line."""
        return json.dumps({name: value for name, value in asdict(self).items() if value not in ("", (), None)})


def read(case: guest.Case, run: guest.Run, note: str = "") -> Figures:
    """Reads the results of a guest that has ended.

    Raises Unreadable if fio's report is missing or damaged.
    """
    sides = _sides(run, "run")
    warm = _sides(run, "warm") if (run.out / "warm.json").exists() else []
    rates = _per_second(run, case.run_s)
    before, after = _counters(run, "before"), _counters(run, "after")
    shown = {name: _latencies(side) for name, side in sides}
    return Figures(
        mode=case.mode,
        job=case.job,
        warm_ios=case.warm_ios,
        iops=round(sum(side["iops"] for _, side in sides), 1),
        first_5s=round(statistics.mean(rates[:5]), 1),
        last_10s=round(statistics.mean(rates[-10:]), 1),
        window_cv=round(variation(rates), 3),
        read=shown.get("read", {}),
        write=shown.get("write", {}),
        max_ms=round(max(side["clat_ns"]["max"] for _, side in sides) / 1e6, 1),
        hit_pct=_hit_pct(before, after),
        arm=_arm(before, after),
        cpu_pressure_pct=round(run.cpu_pressure_pct, 1),
        warm_iops=round(sum(side["iops"] for _, side in warm), 1),
        wall_s=round(run.wall_s, 1),
        settings=case.settings,
        export=f"{case.export} x {case.connections}" if case.mode == "forebay" else "",
        note=note,
        per_second=rates,
    )


def variation(rates: Sequence[int]) -> float:
    """Coefficient of variation of the means of whole windows; 0 if nothing was done."""
    count = len(rates) // WINDOW_S
    windows = [statistics.mean(rates[WINDOW_S * at : WINDOW_S * (at + 1)]) for at in range(count)]
    mean = statistics.mean(windows) if windows else 0
    return statistics.pstdev(windows) / mean if mean else 0.0


def table(rows: Sequence[Figures]) -> str:
    """All rows in Markdown, by job, so that what is compared stands together."""
    header = [
        "job", "warm-up", "cache", "IOPS", "first 5 s", "last 10 s", "CV", "read p50/p99 ms", "write p50/p99 ms",
        "max ms", "hits %", "arm req/s", "CPU pressure %",
    ]  # fmt: skip
    cells = [header] + [
        [
            row.job, f"{row.warm_ios:,}", row.mode, f"{row.iops:,.0f}", f"{row.first_5s:,.0f}", f"{row.last_10s:,.0f}",
            f"{row.window_cv:.2f}", _pair(row.read), _pair(row.write), f"{row.max_ms:,.0f}",
            "-" if row.hit_pct is None else f"{row.hit_pct:.1f}", f"{row.arm.get('requests_per_s', 0):.0f}",
            f"{row.cpu_pressure_pct:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _pair(side: dict[str, float]) -> str:
    return f"{side['p50'] / 1e3:.3g}/{side['p99'] / 1e3:.3g}" if side else "-"


def _sides(run: guest.Run, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Reads and writes of a report of fio, if there were any."""
    path = run.out / f"{name}.json"
    try:
        text = path.read_text()
        job = json.loads(text[text.index("{") :])["jobs"][0]
    except (OSError, ValueError, LookupError) as error:
        raise Unreadable(f"{path}: {error}") from error
    if job["error"]:
        raise Unreadable(f"{path}: fio met error {job['error']}; see {run.out}/log")
    sides = [(side, job[side]) for side in ("read", "write") if job[side]["total_ios"]]
    if not sides:
        raise Unreadable(f"{path}: nothing was done")
    return sides


def _latencies(side: dict[str, Any]) -> dict[str, float]:
    found = side["clat_ns"].get("percentile", {})
    wanted = {"p50": "50.000000", "p99": "99.000000", "p99.9": "99.900000"}
    return {"iops": round(side["iops"], 1), "mean": round(side["clat_ns"]["mean"] / 1e3, 1)} | {
        name: round(found.get(key, 0) / 1e3, 1) for name, key in wanted.items()
    }


def _per_second(run: guest.Run, seconds: int) -> list[int]:
    """Requests of each second; a second without any has no line in fio's log and counts as 0."""
    rates: dict[int, int] = {}
    for path in run.out.glob("fio_iops*.log"):
        for line in path.read_text().splitlines():
            time_ms, count = line.split(",")[:2]
            second = round(int(time_ms) / 1000)
            rates[second] = rates.get(second, 0) + int(count)
    return [rates.get(second, 0) for second in range(1, seconds + 1)]


def _counters(run: guest.Run, name: str) -> dict[str, Any]:
    try:
        return json.loads((run.out / name).read_text())
    except (OSError, ValueError):
        return {}


def _hit_pct(before: dict[str, Any], after: dict[str, Any]) -> float | None:
    """Hits while measuring, as the cache counts them; None if it does not."""
    names = ("hits", "misses")
    if "forebay" in after:
        before, after = before.get("forebay", {}), after["forebay"]
        names = ("read_hit_blocks", "read_miss_blocks")
    if not all(name in counters for name in names for counters in (before, after)):
        return None
    hits, misses = (after[name] - before[name] for name in names)
    return round(100 * hits / (hits + misses), 2) if hits + misses else None


def _arm(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """What the disk did while measuring."""
    done = {name: after.get(name, 0) - before.get(name, 0) for name in ("disk_requests", "disk_seeks", "disk_busy_ms")}
    seconds = max(after.get("up_s", 0) - before.get("up_s", 0), 1)
    return {
        "requests_per_s": round(done["disk_requests"] / seconds, 1),
        "seeks_per_s": round(done["disk_seeks"] / seconds, 1),
        "busy_pct": round(done["disk_busy_ms"] / seconds / 10, 1),
    }

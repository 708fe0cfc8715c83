"""Samples out of thin air."""

from __future__ import annotations

from comparison.model import Results, Sample
from fio_client import Result, Side


def side(iops: float = 1000, p50_us: float = 100, max_us: float = 1000, requests: int = 1000) -> Side:
    """Reads or writes with these figures."""
    return Side(requests, iops, iops * 4096 / 1e6, p50_us, p50_us, p50_us * 2, p50_us * 3, max_us)


def sample(group: str, case: str, target: str, iops: float = 1000, **changes: object) -> Sample:
    """A sample; `p50_us` and `max_us` are of its reads, everything else are fields of `Sample`."""
    latencies = {name: changes.pop(name) for name in ("p50_us", "max_us") if name in changes}
    result = Result(1.0, side(iops, **latencies), None, None, 0.5)  # type: ignore[arg-type]
    fields: dict[str, object] = {
        "round": 1,
        "unit": "IOPS",
        "flash": True,
        "elapsed_s": 1.0,
        "server_cpu_s": 0.01,
        "has_server": True,
        "pressure": 0.1,
        "foreign": 0.0,
        "disturbed": False,
        "attempts": 1,
        "counters": {},
        "result": result,
    }
    return Sample(group=group, case=case, target=target, **(fields | changes))  # type: ignore[arg-type]


def results(*samples: Sample) -> Results:
    """All of them, with targets in the order in which they come first."""
    found = Results()
    for each in samples:
        found.expect(each.group, [each.target])
        found.add(each)
    return found

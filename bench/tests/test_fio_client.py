"""What fio says, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fio_client import parse
from harness import Failure


def side(count: int, iops: float = 0.0, p50_ns: int = 0) -> dict[str, Any]:
    """One direction as fio reports it."""
    percentile = {"50.000000": p50_ns, "99.000000": 2 * p50_ns, "99.900000": 3 * p50_ns}
    latency = {"mean": float(p50_ns), "max": 10 * p50_ns, "N": count, "percentile": percentile}
    return {"total_ios": count, "iops": iops, "bw_bytes": int(iops * 4096), "runtime": 2000, "lat_ns": latency}


def report(**changes: Any) -> str:
    """A whole report, with a line before it as fio writes it sometimes."""
    sync = {"total_ios": 0, "lat_ns": {"N": 0}}
    job = {"error": 0, "job_runtime": 8000, "usr_cpu": 10.0, "sys_cpu": 15.0, "sync": sync}
    job |= {"read": side(600, 300.0, 50_000), "write": side(400, 200.0, 90_000), **changes}
    return "note: something\n" + json.dumps({"jobs": [job]})


def test_reads_and_writes_are_added_up() -> None:
    result = parse(report(), "fio")
    assert result.iops == 500
    assert result.mbytes_per_s == pytest.approx(500 * 4096 / 1e6)
    assert result.requests == 1000
    assert result.seconds == 2
    assert result.client_cpu_s == pytest.approx(2.0)


def test_percentiles_are_of_the_direction_with_more_requests() -> None:
    assert parse(report(), "fio").main.p50_us == 50
    assert parse(report(read=side(0)), "fio").main.p50_us == 90
    assert parse(report(read=side(0)), "fio").main.p999_us == 270


def test_syncs_are_requests_but_not_iops_and_may_be_the_longest() -> None:
    # As fio 3.33 reports several connections: no number of syncs, but their latencies.
    sync = {"total_ios": 0, "lat_ns": side(100, 0.0, 5_000_000)["lat_ns"]}
    result = parse(report(sync=sync), "fio")
    assert result.iops == 500
    assert result.requests == 1100
    assert result.longest_us == 50_000


def test_an_error_is_a_failure_even_if_fio_was_content() -> None:
    with pytest.raises(Failure, match="error 5"):
        parse(report(error=5), "fio")
    with pytest.raises(Failure, match="error"):
        parse(report(total_err=1), "fio")


def test_nothing_completed_is_a_failure() -> None:
    with pytest.raises(Failure, match="not one request"):
        parse(report(read=side(0), write=side(0)), "fio")

"""The arithmetic of kernel-peers, on results that no guest has left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernel-peers"))

import figures
import guest


def side(requests: int, iops: float, p50_ns: int, max_ns: int) -> dict[str, object]:
    """One direction of a report of fio."""
    percentile = {"50.000000": p50_ns, "99.000000": 2 * p50_ns, "99.900000": 3 * p50_ns}
    return {"total_ios": requests, "iops": iops, "clat_ns": {"mean": p50_ns, "max": max_ns, "percentile": percentile}}


@pytest.fixture
def run(tmp_path: Path) -> guest.Run:
    """A measurement of 20 s: reads come every second but the third, writes in the first ten."""
    job = {"error": 0, "read": side(1900, 95, 500_000, 70_000_000), "write": side(300, 15, 100_000, 900_000_000)}
    (tmp_path / "run.json").write_text("fio: a note\n" + json.dumps({"jobs": [job]}))
    reads = "".join(f"{1000 * second}, 100, 0, 0\n" for second in range(1, 22) if second != 3)
    writes = "".join(f"{1000 * second + 1}, 30, 1, 0\n" for second in range(1, 11) if second != 3)
    (tmp_path / "fio_iops.1.log").write_text(reads + writes)
    before = {"up_s": 10, "disk_requests": 5, "disk_seeks": 5, "disk_busy_ms": 100, "hits": 10, "misses": 10}
    after = {"up_s": 30, "disk_requests": 4005, "disk_seeks": 3005, "disk_busy_ms": 20_100, "hits": 100, "misses": 20}
    (tmp_path / "before").write_text(json.dumps(before))
    (tmp_path / "after").write_text(json.dumps(after))
    return guest.Run(tmp_path, 42.0, 12.5)


def case(**changes: object) -> guest.Case:
    """A case of 20 s."""
    return guest.Case(**({"mode": "bcache", "job": "zmix", "warm_ios": 1000, "run_s": 20} | changes))  # type: ignore[arg-type]


def test_requests_are_counted_by_the_second(run: guest.Run) -> None:
    found = figures.read(case(), run)
    assert found.per_second == [130, 130, 0, *[130] * 7, *[100] * 10]
    assert found.first_5s == 104
    assert found.last_10s == 100
    assert found.iops == 110


def test_the_worst_of_both_directions_is_shown(run: guest.Run) -> None:
    found = figures.read(case(), run)
    assert found.max_ms == 900
    assert (found.read["p50"], found.write["p99"]) == (500, 200)


def test_the_arm_is_measured_over_the_time_that_passed(run: guest.Run) -> None:
    assert figures.read(case(), run).arm == {"requests_per_s": 200, "seeks_per_s": 150, "busy_pct": 100}


def test_hits_are_those_of_the_run(run: guest.Run) -> None:
    assert figures.read(case(), run).hit_pct == 90


def test_forebay_names_its_counters_itself(run: guest.Run) -> None:
    for name, hits in (("before", 7), ("after", 27)):
        counters = {"forebay": {"read_hit_blocks": hits, "read_miss_blocks": hits}, "up_s": hits}
        (run.out / name).write_text(json.dumps(counters))
    assert figures.read(case(mode="forebay"), run).hit_pct == 50


def test_a_cache_that_does_not_count_has_no_hits(run: guest.Run) -> None:
    (run.out / "after").write_text("{}")
    found = figures.read(case(), run)
    assert found.hit_pct is None
    assert "hit_pct" not in json.loads(found.json())


@pytest.mark.parametrize("text", ["", "no json", '{"jobs": []}'])
def test_a_damaged_report_is_refused(run: guest.Run, text: str) -> None:
    (run.out / "run.json").write_text(text)
    with pytest.raises(figures.Unreadable, match=r"run\.json"):
        figures.read(case(), run)


def test_errors_of_fio_are_no_figures(run: guest.Run) -> None:
    job = {"error": 5, "read": side(1, 1, 1, 1), "write": side(0, 0, 0, 0)}
    (run.out / "run.json").write_text(json.dumps({"jobs": [job]}))
    with pytest.raises(figures.Unreadable, match="error 5"):
        figures.read(case(), run)


def test_variation_is_that_of_whole_windows() -> None:
    assert figures.variation([10] * 12) == 0
    assert figures.variation([10] * 5 + [30] * 5 + [999] * 4) == 0.5
    assert figures.variation([]) == 0


def test_the_table_has_a_row_for_each_run(run: guest.Run) -> None:
    lines = figures.table([figures.read(case(), run)] * 2).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[2].startswith("| zmix | 1,000")

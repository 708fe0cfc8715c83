"""Counts of instructions: what is read from callgrind, and what is called a regression."""

from __future__ import annotations

import pytest

import instruction_counts as counts
from harness import Failure

FILE = """\
version: 1
events: Ir
fn=counted_by_callgrind
12 40
cfn=alloc::raw_vec::finish_grow
calls=3 0
12 300
fn=alloc::raw_vec::finish_grow
cfn=malloc
calls=2 0
7 100
cfn=realloc'2
calls=1 0
7 50
cfn=free
calls=5 0
7 50
totals: 1234
"""
RECORD = {
    "tools": {"rustc": "1"},
    "operations": {"hit": {"instructions": 100.0, "allocations": 0.0}, "gone": {"instructions": 1, "allocations": 0}},
}


def compared(instructions: int, allocations: int = 0) -> counts.Line:
    counted = counts.Counted(10, instructions, allocations, {})
    return counts.compare({"hit": counted}, RECORD)[0]


def test_the_sum_and_the_calls_of_allocators_are_read() -> None:
    assert counts.read_callgrind(FILE.splitlines(keepends=True)) == (1234, 3)


def test_a_file_without_a_sum_is_a_failure() -> None:
    with pytest.raises(Failure, match="no sum"):
        counts.read_callgrind(FILE.splitlines()[:-1])


def test_three_percent_more_is_borne_and_a_little_more_is_not() -> None:
    assert compared(1030).complaints(counts.TOLERANCE_PCT) == []
    assert compared(1031).complaints(counts.TOLERANCE_PCT) == ["hit: 103 instructions, 3.1 % more than 100"]
    assert compared(500).complaints(counts.TOLERANCE_PCT) == []


def test_an_allocation_for_each_operation_is_a_regression() -> None:
    assert compared(1000, 10).complaints(3.0) == ["hit: 1.00 allocations for each operation instead of 0.00"]


def test_other_tools_are_given_more_room() -> None:
    assert counts.tolerance_pct(RECORD, {"rustc": "1"}) == counts.TOLERANCE_PCT
    assert counts.tolerance_pct(RECORD, {"rustc": "2"}) == counts.TOLERANCE_OTHER_TOOLS_PCT


def test_what_is_not_recorded_is_new_and_what_is_not_counted_is_missing() -> None:
    lines = counts.compare({"hit": counts.Counted(1, 90, 0, {}), "other": counts.Counted(1, 5, 0, {})}, RECORD)
    assert lines[1].complaints(3.0) == []
    assert [row[4] for row in counts.rows(lines, {"hit": "", "other": ""})] == ["-10.0 %", "new"]
    assert counts.missing(lines, RECORD) == ["gone"]


def test_bytes_are_for_each_operation_and_left_out_where_there_are_none() -> None:
    moved = {"copied": 40960, "cache_read": 0, "zeroed": 0, "cache_written": 0, "backing_read": 0, "backing_written": 0}
    table = counts.moved_rows({"fill": counts.Counted(10, 1, 0, moved), "decode": counts.Counted(10, 1, 0, {})})
    assert table == [["fill", "4,096", "0", "0", "0", "0", "0"]]

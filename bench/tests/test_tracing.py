"""Traces: what is read of a file, what a replay finds wrong, and the arithmetic of tables."""

from __future__ import annotations

import argparse
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import Failure
from tracing import daemon, table
from tracing.arguments import number, policies, shares
from tracing.content import Versions, block
from tracing.records import BLOCK, END_MAX, BadTrace, Request, accesses, read, runs, unpacked

NEEDS = [tool for tool in ("nbdkit",) if shutil.which(tool) is None]


def has_libnbd() -> bool:
    """Whether a client can be run."""
    try:
        daemon.python_with_libnbd()
    except Failure:
        return False
    return not NEEDS


def trace(folder: Path, *records: tuple[int, int, int]) -> Path:
    """A file with these: first block, blocks, write."""
    path = folder / "small.bin"
    path.write_bytes(b"".join(struct.pack("<QQII", 0, *record) for record in records))
    return path


def test_records_are_read_as_they_are_written(tmp_path: Path) -> None:
    requests = read(trace(tmp_path, (5, 2, 0), (1 << 33, 0, 1)))
    assert requests == [Request(5, 2, False), Request(1 << 33, 1, True)]
    assert list(accesses(requests)) == [(5, False), (6, False), (1 << 33, True)]


def test_blocks_that_follow_one_another_are_one_run(tmp_path: Path) -> None:
    assert runs(read(trace(tmp_path, (9, 1, 0), (5, 2, 0), (6, 2, 1), (5, 1, 1)))) == [(5, 3), (9, 1)]


@pytest.mark.parametrize("record", [(0, 8193, 0), (END_MAX - 1, 1, 0), (1 << 63, 1, 1)])
def test_a_request_that_no_volume_takes_is_refused(tmp_path: Path, record: tuple[int, int, int]) -> None:
    with pytest.raises(BadTrace, match="record 1: "):
        read(trace(tmp_path, (0, 8192, 0), record))


@pytest.mark.parametrize("data", [b"", b"x" * 23, b"x" * 49])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(BadTrace, match="are no records of 24 bytes"):
        read(tmp_path / "bad")


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_what_is_not_packed_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.zst").write_bytes(b"not packed")
    with pytest.raises(BadTrace, match=r"x\.zst cannot be unpacked"):
        unpacked(tmp_path / "x.zst", tmp_path)


def test_other_data_than_was_written_is_found() -> None:
    versions = Versions()
    right = block(7, 0) + versions.write(8, 2)
    assert versions.check(7, right) is None
    old = versions.check(7, block(7, 0) + block(8, 0) + block(9, 1))
    assert old == "block 8 is not version 1 of it, but version 0 of block 8"
    moved = versions.check(7, block(7, 0) + block(8, 1) + block(8, 1))
    assert moved == "block 9 is not version 1 of it, but version 1 of block 8"
    torn = versions.check(8, block(8, 1)[:512] + block(8, 0)[512:])
    assert torn is not None and "no block as a whole" in torn
    assert "zeroes" in str(versions.check(7, bytes(BLOCK)))
    assert versions.write(8, 1) == block(8, 2)
    assert versions.check(8, block(8, 1)) == "block 8 is not version 2 of it, but version 1 of block 8"


@pytest.mark.skipif(not has_libnbd(), reason="nbdkit or libnbd's module is not installed (scripts/setup installs them)")
class TestClient:
    """The client, on servers that are right and on one that is wrong."""

    RECORDS = [(3, 4, 0), (4, 2, 1), (3, 4, 0), (4, 1, 1), (4, 2, 0)] * 50

    def serve(self, folder: Path, *plugin: str) -> Any:
        command = ["nbdkit", "--foreground", "--exit-with-parent", "--unix", str(folder / "socket"), *plugin]
        return harness.process(command, folder / "socket")

    def test_right_data_is_taken(self, tmp_path: Path) -> None:
        file = trace(tmp_path, *self.RECORDS)
        daemon.prepare(tmp_path / "disk", read(file), 64)
        with self.serve(tmp_path, "file", str(tmp_path / "disk")):
            found = daemon.client(file, tmp_path / "socket", 16)
        assert (found["requests"], found["checked_blocks"]) == (250, 500)

    def test_wrong_data_ends_the_run(self, tmp_path: Path) -> None:
        file = trace(tmp_path, *self.RECORDS)
        with self.serve(tmp_path, "memory", "1M"), pytest.raises(Failure, match="block 3 is not version 0 of it"):
            daemon.client(file, tmp_path / "socket", 16)

    def test_an_error_ends_the_run(self, tmp_path: Path) -> None:
        file = trace(tmp_path, *self.RECORDS)
        daemon.prepare(tmp_path / "disk", read(file), 64)
        error = ["--filter=error", "file", str(tmp_path / "disk"), "error-pwrite=EIO", "error-pwrite-rate=100%"]
        with (
            self.serve(tmp_path, *error),
            pytest.raises(Failure, match="a write of 2 blocks from block 4 on: the server"),
        ):
            daemon.client(file, tmp_path / "socket", 16)


def test_figures_are_those_of_the_engines_counters() -> None:
    stats = {"read_hit_blocks": 75, "read_miss_blocks": 25, "written_bytes": 4 * BLOCK, "filled_blocks": 16}
    stats |= {"cache_written_bytes": 30 * BLOCK, "fill_no_room_blocks": 5}
    assert daemon.figures(stats) == daemon.Figures(25, 1.5, 20)


ROW = {
    "trace": 0,
    "share_pct": 10,
    "nbd": {"lru": {"misses_pct": 12.34, "written": 1.05, "no_room_pct": 2}, "fifo": {"misses_pct": None}},
    "engine": {
        "fifo": {"misses_pct": None},
        "lru": {"misses_pct": 12.0, "written": 1.0, "no_room_pct": 0.04},
        "s3fifo": {"misses_pct": None},
    },
    "exact": {"Belady": {"misses_pct": 5.004}},
}


def test_a_row_has_all_columns() -> None:
    text = table.replayed(["vm"], [ROW])
    assert [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")] == (
        ["vm", "10 %", "12.3 (1.05)", "2.0, 0.0", "too small", "-", "too small", "12.0 (1.00)", "too small", "5.0"]
    )


@pytest.mark.parametrize(("other", "apart"), [(5.504, 0), (5.52, 1), (4.49, 1)])
def test_policies_that_differ_are_told(other: float, apart: int) -> None:
    text, found = table.compared(["vm"], [ROW], [{"Belady": other}])
    assert f"5.00 ({other - 5.004:+.2f})" in text
    assert len(found) == apart


@pytest.mark.parametrize("text", ["", "5,", "0", "101", "5,x", "-5"])
def test_shares_are_percentages(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        shares(text)
    assert shares("5,40") == [5, 40]


def test_other_arguments_are_checked() -> None:
    for parse, bad in ((policies, "lru,arc"), (number(1, 9), "0"), (number(1, 9), "10"), (number(1, 9), "x")):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(bad)
    assert (policies("lru,fifo"), number(1, 9)("9")) == (["lru", "fifo"], 9)

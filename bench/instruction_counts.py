"""Arithmetic of `bench/instructions`: what callgrind wrote, the record, and the comparison of both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness import Failure

# Functions of the C library that Rust's default allocator calls.
ALLOCATORS = {"malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"}
MOVED = ("copied", "zeroed", "cache_read", "cache_written", "backing_read", "backing_written")
# Growth of an operation, in percent, that is called a regression; the second, if compiler, libc or valgrind are others
# than those of the record: then a few percent more mean nothing.
TOLERANCE_PCT = 3.0
TOLERANCE_OTHER_TOOLS_PCT = 15.0
# What counts of allocations may differ by, for each operation: tables grow, now and then.
TOLERANCE_ALLOCATIONS = 0.02


@dataclass(frozen=True)
class Counted:
    """What was counted of one scenario."""

    operations: int
    instructions: int
    allocations: int
    moved: Mapping[str, int]

    def instructions_each(self) -> float:
        return self.instructions / self.operations

    def allocations_each(self) -> float:
        return self.allocations / self.operations

    def as_record(self) -> dict[str, float]:
        """The figures that are recorded; rounded, so that a record does not change where nothing did."""
        return {"instructions": round(self.instructions_each(), 1), "allocations": round(self.allocations_each(), 4)}


@dataclass(frozen=True)
class Line:
    """One operation beside its record."""

    name: str
    instructions: float
    allocations: float
    recorded: Mapping[str, float] | None

    def change_pct(self) -> float | None:
        """Growth since the record, in percent."""
        before = self.recorded and self.recorded["instructions"]
        return round((self.instructions / before - 1) * 100, 6) if before else None

    def complaints(self, tolerance_pct: float) -> list[str]:
        """What got worse by more than the tolerance."""
        if self.recorded is None:
            return []
        found = []
        change = self.change_pct()
        if change is not None and change > tolerance_pct:
            before = self.recorded["instructions"]
            found.append(f"{self.name}: {self.instructions:,.0f} instructions, {change:.1f} % more than {before:,.0f}")
        if self.allocations > self.recorded["allocations"] + TOLERANCE_ALLOCATIONS:
            before = self.recorded["allocations"]
            found.append(f"{self.name}: {self.allocations:.2f} allocations for each operation instead of {before:.2f}")
        return found


def read_callgrind(lines: Iterable[str]) -> tuple[int, int]:
    """Instructions and allocations in a file of callgrind that was written with `--compress-strings=no`."""
    instructions, allocations, called = None, 0, ""
    for line in lines:
        if line.startswith("cfn="):
            called = line[4:].strip().split("'")[0]
        elif line.startswith("calls=") and called in ALLOCATORS:
            allocations += int(line[6:].split()[0])
        elif match := re.match(r"(?:totals|summary): (\d+)", line):
            instructions = int(match.group(1))
    if instructions is None:
        raise Failure("callgrind wrote no sum: was it killed?")
    return instructions, allocations


def compare(counted: Mapping[str, Counted], record: Mapping[str, Any]) -> list[Line]:
    """All operations beside their record."""
    known = record.get("operations", {})
    return [
        Line(name, each.instructions_each(), each.allocations_each(), known.get(name)) for name, each in counted.items()
    ]


def missing(lines: Iterable[Line], record: Mapping[str, Any]) -> list[str]:
    """Operations of the record that were not counted."""
    names = {line.name for line in lines}
    return [name for name in record.get("operations", {}) if name not in names]


def tolerance_pct(record: Mapping[str, Any], tools: Mapping[str, str]) -> float:
    """What may change before it is called a regression."""
    same = record.get("tools", tools) == tools
    return TOLERANCE_PCT if same else TOLERANCE_OTHER_TOOLS_PCT


def rows(lines: Iterable[Line], whats: Mapping[str, str]) -> list[list[str]]:
    """Cells of the table of instructions."""

    def row(line: Line) -> list[str]:
        change = line.change_pct()
        return [
            line.name,
            whats[line.name],
            f"{line.instructions:,.0f}",
            f"{line.recorded['instructions']:,.0f}" if line.recorded else "-",
            "new" if change is None else f"{change:+.1f} %",
            f"{line.allocations:.3f}",
        ]

    return [row(line) for line in lines]


def moved_rows(counted: Mapping[str, Counted]) -> list[list[str]]:
    """Cells of the table of bytes; operations that move none are left out."""
    return [
        [name, *(f"{each.moved[key] / each.operations:,.0f}" for key in MOVED)]
        for name, each in counted.items()
        if any(each.moved.get(key) for key in MOVED)
    ]

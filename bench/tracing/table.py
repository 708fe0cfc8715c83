"""Rows of `bench/traces` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import harness as h
from tracing.virtual import ENGINE

# Points of misses by which an exact policy may differ from libCacheSim's.
TOLERANCE = 0.5
Row = Mapping[str, Any]


def cell(figures: Mapping[str, Any]) -> str:
    """Misses, and bytes written if they are known."""
    if figures["misses_pct"] is None:
        return "too small"
    written = figures.get("written")
    return f"{figures['misses_pct']:.1f}" + (f" ({written:.2f})" if written is not None else "")


def not_filled(row: Row, name: str) -> str:
    """Missed blocks that found no room, in percent of all, over NBD and in virtual time."""
    if row["nbd"][name]["misses_pct"] is None:
        return "-"
    return f"{row['nbd'][name]['no_room_pct']:.1f}, {row['engine'][name]['no_room_pct']:.1f}"


def replayed(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Misses of reads and bytes written by the engine, over NBD and in virtual time, beside exact policies.

    `nbd` of a row has the figures over NBD by policy; it is empty if nothing was replayed there. Beside each is which
    share of the missed blocks was not filled, in percent: over NBD, and in virtual time.
    """
    over_nbd = list(rows[0]["nbd"])
    exact = list(rows[0]["exact"])
    header = [
        "trace",
        "cache",
        *(text for name in over_nbd for text in (f"{name}, NBD", "not filled")),
        *ENGINE,
        *exact,
    ]
    cells = [
        [
            names[row["trace"]],
            f"{row['share_pct']} %",
            *(text for name in over_nbd for text in (cell(row["nbd"][name]), not_filled(row, name))),
            *(cell(row["engine"][name]) for name in ENGINE),
            *(cell(row["exact"][name]) for name in exact),
        ]
        for row in rows
    ]
    return h.table(header, cells)


def compared(names: Sequence[str], rows: Sequence[Row], others: Sequence[Mapping[str, float]]) -> tuple[str, list[str]]:
    """Exact policies, and by how many points those of libCacheSim miss more; and what differs by too much."""
    exact = list(rows[0]["exact"])
    cells, apart = [], []
    for row, other in zip(rows, others, strict=True):
        line = [names[row["trace"]], f"{row['share_pct']} %"]
        for name in exact:
            ours = row["exact"][name]["misses_pct"]
            more = other[name] - ours
            line.append(f"{ours:.2f} ({more:+.2f})")
            if abs(more) > TOLERANCE:
                apart.append(f"{line[0]}, {line[1]}: {name} misses {ours:.2f} % here and {other[name]:.2f} % there")
        cells.append(line)
    return h.table(["trace", "cache", *exact], cells), apart

"""Draws the JSON of `bench/frontier`: a panel for each trace and share, misses against blocks written to flash.

    PYTHONPATH=bench python3 -m tracing.plot frontier.json frontier.svg

Needs matplotlib, which `bench/frontier` installs into a virtual environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt

from tracing.frontier import Line, asked, ideal, point, series

COLOURS = {"fifo": "#4c78a8", "lru": "#54a24b", "s3fifo": "#e45756", "s3fifo, second-access": "#f58518"}
# The axis begins at the least that the engine writes, divided by this, if the oracle writes even less.
FURTHEST = 50


def scale(axis: Any, oracle: Line, lines: Sequence[Line]) -> None:
    """Logarithmic where the oracle writes much less; how it goes on without fills is of no interest."""
    engine = min(point(line, asked(oracle)).written for line in lines if "policy" in line)
    least = ideal(oracle, 0, 0)[1]
    if least < engine / FURTHEST:
        axis.set_xscale("log")
        axis.set_xlim(left=engine / FURTHEST)
    else:
        axis.set_xlim(left=0)


def panel(axis: Any, lines: Sequence[Line]) -> None:
    """The engine's series, and what caches that know the future do."""
    oracle = next(line for line in lines if "curve" in line)
    for place, (name, style) in enumerate([("oracle", "-"), ("bound", ":")], start=1):
        found = [ideal(oracle, at[0], at[place]) for at in oracle["curve"]]
        axis.plot(
            [written for _, written in found if written],
            [m for m, written in found if written],
            style,
            color="#222222",
            lw=1,
            label=name,
        )
    misses, written = ideal(oracle, oracle["belady"]["hits"], oracle["belady"]["fills"])
    axis.plot([written], [misses], "*", color="#222222", label="Belady, all filled")
    for name, colour in COLOURS.items():
        points = [point(line, asked(oracle)) for line in lines if "policy" in line and series(line) == name]
        axis.plot(
            [one.written for one in points],
            [one.misses_pct for one in points],
            "o-",
            color=colour,
            ms=3,
            lw=0.8,
            label=name,
        )
    scale(axis, oracle, lines)
    axis.grid(alpha=0.3)


def main(source: str, image: str) -> None:
    """Draws all panels."""
    report = json.loads(Path(source).read_text())
    lines, names = report["lines"], report["traces"]
    shares = sorted({line["share_pct"] for line in lines})
    figure, axes = plt.subplots(len(names), len(shares), figsize=(4 * len(shares), 3.2 * len(names)), squeeze=False)
    for row, name in enumerate(names):
        for column, share in enumerate(shares):
            axis = axes[row][column]
            panel(axis, [line for line in lines if (line["trace"], line["share_pct"]) == (row, share)])
            axis.set_title(f"{name}, cache of {share} %", fontsize=9, loc="left")
    for axis in axes[-1]:
        axis.set_xlabel("written to flash for each block asked for", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("reads that miss, %", fontsize=8)
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(image, dpi=120, metadata={"Date": None} if image.endswith(".svg") else None)


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "frontier"
    main(*sys.argv[1:])

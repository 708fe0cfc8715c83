#!/usr/bin/env python3
"""Plots the time series of the pacing scenarios (virtual time, see docs/use/destage.md).

    cargo run --release -p forebay-sim --example pacing -- --scenario step-load --csv step-load.csv
    bench/pacing/plot.py step-load.csv docs/img/destage-step-load.svg

Needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
# The same input gives the same file.
matplotlib.rcParams["svg.hashsalt"] = "forebay"
from matplotlib import pyplot as plt  # noqa: E402

COLOURS = {
    "age deadline": "#4c78a8",
    "dirty_low_pct": "#72b7b2",
    "backing store": "#e45756",
    "foreground latency": "#b279a2",
    "retry after failure": "#222222",
    "idle delay": "#bab0ac",
    "nothing to do": "#eeeeee",
}


def column(rows: list[dict[str, str]], name: str) -> list[float]:
    """One column as numbers."""
    return [float(row[name]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("image", type=Path, help="SVG to write")
    options = parser.parse_args()
    with options.csv.open() as file:
        rows = list(csv.DictReader(file))
    seconds = column(rows, "second")
    reads = any(value > 0 for value in column(rows, "reads_per_s"))
    figure, axes = plt.subplots(4, 1, figsize=(9, 8), sharex=True, height_ratios=[3, 3, 3, 0.5])
    speed, latency, dirty, limit = axes
    if reads:
        speed.plot(seconds, column(rows, "reads_per_s"), label="reads/s", color="#f58518")
        latency.plot(seconds, column(rows, "read_p99_ms"), label="read p99", color="#f58518")
        latency.plot(seconds, column(rows, "read_mean_ms"), label="read mean", color="#54a24b")
    if any(value > 0 for value in column(rows, "writes_per_s")):
        speed.plot(seconds, column(rows, "writes_per_s"), label="client writes/s", color="#4c78a8")
    if not reads:
        latency.plot(seconds, column(rows, "write_p99_ms"), label="write p99", color="#f58518")
        latency.plot(seconds, column(rows, "write_mean_ms"), label="write mean", color="#54a24b")
    speed.plot(seconds, column(rows, "backing_blocks_per_s"), label="destaged blocks/s", color="#e45756", lw=1)
    speed.set_ylabel("per second")
    latency.set_ylabel("ms")
    dirty.plot(seconds, column(rows, "dirty_blocks"), label="dirty blocks", color="#4c78a8")
    dirty.set_ylabel("dirty blocks")
    age = dirty.twinx()
    age.plot(seconds, column(rows, "oldest_age_s"), label="oldest, s", color="#222222", lw=1)
    age.set_ylabel("age, s")
    age.set_ylim(bottom=0)
    seen: dict[str, None] = {}
    for row, second in zip(rows, seconds, strict=True):
        name = row["limited_by"]
        limit.axvspan(second - 1, second, color=COLOURS.get(name, "#ffcc00"), label=None if name in seen else name)
        seen[name] = None
    limit.set_yticks([])
    limit.set_xlabel("seconds")
    limit.set_ylabel("limited by", rotation=0, ha="right", va="center")
    limit.legend(loc="upper center", bbox_to_anchor=(0.5, -1.4), ncol=5, frameon=False, fontsize=8)
    for axis in (speed, latency, dirty):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(loc="upper right", fontsize=8, frameon=False)
    figure.suptitle(options.csv.stem)
    figure.tight_layout()
    figure.savefig(options.image, metadata={"Date": None})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Plots the JSON of `bench/compare`: a panel for each group, median and spread of each target relative to the first.

    python3 bench/comparison/plot.py results.json results.png

Needs matplotlib, which `bench/compare` installs into a virtual environment of its own; so this file uses nothing else
of the package.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt

COLOURS = {"raw": "#222222", "no cache": "#777777", "forebay": "#e45756", "null volume": "#f2a6a7"}
OTHERS = ("#4c78a8", "#72b7b2", "#f58518", "#54a24b")
# With bars this many times the base, the others could not be seen on a linear scale.
LOGARITHMIC = 20
Samples = list[dict[str, Any]]


def relative(samples: Samples, case: str, target: str, base: float) -> tuple[float, float, float] | None:
    """Median, lowest and highest of one case on one target, in units of `base`."""
    values = [s["value"] / base for s in samples if (s["case"], s["target"]) == (case, target)]
    return (statistics.median(values), min(values), max(values)) if values else None


def panel(axis: Any, group: str, samples: Samples, order: list[str]) -> None:
    """Bars side by side for each case."""
    names = dict.fromkeys(s["case"] for s in samples)
    cases = [case for case in names if any((s["target"], s["case"]) == (order[0], case) for s in samples)]
    targets = [name for name in order if any(s["target"] == name for s in samples)]
    named: set[str] = set()
    height = 0.8 / max(len(targets), 1)
    longest = 0.0
    for place, target in enumerate(targets):
        for row, case in enumerate(cases):
            first = [s["value"] for s in samples if (s["case"], s["target"]) == (case, targets[0])]
            base = statistics.median(first) if first else 0
            found = relative(samples, case, target, base) if base else None
            if found is None:
                continue
            middle, low, high = found
            longest = max(longest, middle)
            axis.barh(
                row + (place - (len(targets) - 1) / 2) * height,
                middle,
                height,
                xerr=[[middle - low], [high - middle]],
                color=COLOURS.get(target, OTHERS[place % len(OTHERS)]),
                error_kw={"elinewidth": 0.8},
                label=None if target in named else target,
            )
            named.add(target)
    if longest > LOGARITHMIC:
        axis.set_xscale("log")
    axis.set_yticks(range(len(cases)), cases, fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1, color="#222222", lw=0.6)
    axis.set_title(f"{group}: in units of {targets[0]}", fontsize=9, loc="left")
    axis.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    axis.grid(axis="x", alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("image", type=Path)
    options = parser.parse_args()
    report = json.loads(options.json.read_text())
    by_group: dict[str, Samples] = {}
    for sample in report["samples"]:
        by_group.setdefault(sample["group"], []).append(sample)
    # A group with one target has nothing to be compared with.
    by_group = {group: found for group, found in by_group.items() if len({s["target"] for s in found}) > 1}
    if not by_group:
        print("plot: no group with more than one target, nothing to draw")
        return
    bars = [len({(s["case"], s["target"]) for s in found}) for found in by_group.values()]
    figure, axes = plt.subplots(
        len(bars), 1, figsize=(9, sum(0.9 + 0.16 * count for count in bars)), height_ratios=bars, squeeze=False
    )
    for axis, (group, found) in zip(axes[:, 0], by_group.items(), strict=True):
        panel(axis, group, found, report["targets"][group])
    about = report["about"]
    figure.suptitle(f"bench/compare, {about['commit']}, {about['cores']} cores, kernel {about['kernel']}", fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    figure.savefig(options.image, dpi=120)


if __name__ == "__main__":
    main()

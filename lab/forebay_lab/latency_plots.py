"""Drawings of acknowledge latency: over load, and over the size of messages."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from .experiment import Picture, Results, Row
from .plots import curves, figure

MEASURES = (("mean", "mean_us"), ("median", "p50_us"), ("p99", "p99_us"))


def pictures(results: Results) -> Sequence[Picture]:
    """All that can be drawn of what was measured."""
    return [*over_load(results), *over_size(results)]


def over_load(results: Results) -> Sequence[Picture]:
    """Mean, median and p99 over acknowledged messages/s; a drawing for each size and number of connections."""
    drawings = []
    with_loads = [row for row in results.rows if str(row.parameters["loads"])]
    for size, connections in dict.fromkeys((which(row, "size"), which(row, "connections")) for row in with_loads):
        mine = [row for row in with_loads if (which(row, "size"), which(row, "connections")) == (size, connections)]
        drawn, panels = figure(len(MEASURES))
        for axes, (what, key) in zip(panels, MEASURES, strict=True):
            for row in mine:
                draw(axes, results.samples[row.name], key, str(row.parameters["target"]))
            finish(axes, "messages/s acknowledged", f"{what}, us")
        title = f"{size} B, {connections} connections: latency over load (crosses: the closed loop)"
        drawings.append(Picture(f"load-{size:05}-{connections:03}", title, drawn))
    return drawings


def draw(axes: Axes, samples: pd.DataFrame, key: str, label: str) -> None:
    """A line over the loads. The closed loop, which waits for its server, is no part of it: a cross in its colour."""
    offered, closed = samples[samples["load_percent"] > 0], samples[samples["load_percent"] == 0]
    (line,) = axes.plot(offered["per_s"], offered[key], marker="o", markersize=4, label=label)
    axes.plot(closed["per_s"], closed[key], marker="x", markersize=8, linestyle="", color=line.get_color())


def over_size(results: Results) -> Sequence[Picture]:
    """Median and p99 in the closed loop over size, for each number of connections with more than one size."""
    drawings = []
    for connections in dict.fromkeys(which(row, "connections") for row in results.rows):
        mine = [row for row in results.rows if which(row, "connections") == connections]
        if len({which(row, "size") for row in mine}) < 2:
            continue
        drawn, panels = figure(2)
        for axes, (what, key) in zip(panels, MEASURES[1:], strict=True):
            for target in dict.fromkeys(str(row.parameters["target"]) for row in mine):
                of_it = [row for row in mine if row.parameters["target"] == target]
                values = [float(results.summaries[row.name][key]) for row in of_it]
                curves(axes, [which(row, "size") for row in of_it], values, target)
            axes.set_xscale("log", base=2)
            finish(axes, "bytes of a message", f"{what}, us")
        title = f"{connections} connections, closed loop: latency over size"
        drawings.append(Picture(f"size-{connections:03}", title, drawn))
    return drawings


def which(row: Row, parameter: str) -> int:
    """A whole number of a row's parameters."""
    return int(row.parameters[parameter])


def finish(axes: Axes, x: str, y: str) -> None:
    """Names the axes; latencies go by powers of ten, for tails are far from medians."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_yscale("log")
    axes.legend(fontsize="small")

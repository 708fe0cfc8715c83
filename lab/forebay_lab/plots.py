"""How drawings look: one place for their size and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

mpl.use("Agg")
# Names inside of SVG files are random otherwise.
mpl.rcParams["svg.hashsalt"] = "forebay"


def figure(columns: int) -> tuple[Figure, list[Axes]]:
    """A drawing with so many panels side by side."""
    drawn = Figure(figsize=(6.5 * columns, 4), layout="constrained")
    axes = [drawn.add_subplot(1, columns, number + 1) for number in range(columns)]
    for one in axes:
        one.grid(visible=True, alpha=0.3)
    return drawn, axes


def finish(axes: Axes, x: str, y: str, *, doubling: bool = False) -> None:
    """Names the axes; y begins at 0, and x goes by powers of two if it is `doubling`."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    if doubling:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


@dataclass(frozen=True)
class Line:
    """One line of a drawing over time."""

    label: str
    t_s: Sequence[float]
    values: Sequence[float]


def over_time(lines: Sequence[Line], y: str, warm_up_s: float, *, logarithmic: bool = False) -> Figure:
    """Lines beside their legend; what is dropped as warm-up is shaded."""
    drawn = Figure(figsize=(10, 4.5), layout="constrained")
    axes = drawn.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    for number, line in enumerate(lines):
        # Ten colours, then again in dashes.
        style = "-" if number < 10 else "--"
        axes.plot(line.t_s, line.values, style, color=f"C{number % 10}", label=line.label, linewidth=1.3)
    axes.axvspan(0, warm_up_s, color="grey", alpha=0.12, linewidth=0, label="warm-up, dropped")
    axes.set(xlabel="s", ylabel=y)
    axes.set_xlim(left=0)
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
    drawn.legend(loc="outside right upper")
    return drawn


def curves(axes: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
    """A line with its points."""
    axes.plot(x, y, marker="o", markersize=4, label=label)


def bars(axes: Axes, groups: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    """Bars side by side: a group for each of `groups`, in it a bar for each label."""
    width = 0.8 / len(values)
    for number, (label, heights) in enumerate(values.items()):
        places = [at - 0.4 + width * (number + 0.5) for at in range(len(groups))]
        axes.bar(places, list(heights), width, label=label)
    axes.set_xticks(range(len(groups)), list(groups))

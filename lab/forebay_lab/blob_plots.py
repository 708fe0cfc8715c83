"""Drawings of the blob stores: messages a second over each parameter, by store and back end."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .experiment import Picture, Results
from .plots import curves, figure

PARAMETERS = {
    "size": "bytes of a message",
    "batch": "messages in a batch",
    "connections": "connections",
    "partitions": "partitions",
}


def pictures(results: Results) -> Sequence[Picture]:
    """One for each parameter that was varied: acknowledged and stored messages a second."""
    drawings = []
    for parameter, label in PARAMETERS.items():
        lines = {row.name: varied(results.samples[row.name], parameter) for row in results.rows}
        lines = {name: frame for name, frame in lines.items() if len(frame) > 1}
        if not lines:
            continue
        drawn, panels = figure(2)
        for axes, (key, what) in zip(panels, (("per_s", "acknowledged"), ("stored_per_s", "stored")), strict=True):
            for name, frame in lines.items():
                curves(axes, frame[parameter].tolist(), frame[key].tolist(), name)
            axes.set(xlabel=label, ylabel=f"messages/s {what}", xscale="log", yscale="log")
            axes.legend(fontsize="small")
        drawings.append(Picture(f"by-{parameter}", f"Messages a second by {label}", drawn))
    return drawings


def varied(samples: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """The base and the points that differ from it in one parameter, in its order; failed ones are left out."""
    if "per_s" not in samples:
        return samples.iloc[:0]
    mine = samples[(samples["point"] == "base") | samples["point"].str.startswith(f"{parameter}=")]
    return mine.dropna(subset=["per_s"]).sort_values(parameter)

"""A report: one HTML page with everything in it, and the drawings as PNG files beside it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from .experiment import Detailed, Experiment
from .store import Run

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #1b1f24 }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { padding: .2em .8em; border-bottom: 1px solid #d5dae0; text-align: right }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
.warning { background: #fff3cd; padding: .5em 1em; border-left: 4px solid #d39e00 }
dl { display: grid; grid-template-columns: max-content auto; gap: .1em 1em } dd { margin: 0 } dt { color: #57606a }
"""


def write(experiment: Experiment, run: Run) -> Path:
    """Makes the report of a run in its folder; returns the page."""
    results = run.results()
    parts = [f"<h1>{html.escape(experiment.title)}</h1>", warnings(run), as_table(experiment.table(results))]
    if isinstance(experiment, Detailed):
        parts.append(as_table(experiment.details(results)))
    for picture in experiment.pictures(results):
        memory = io.BytesIO()
        picture.figure.savefig(memory, format="png", dpi=110)
        (run.path / f"{picture.name}.png").write_bytes(memory.getvalue())
        data = base64.b64encode(memory.getvalue()).decode()
        title = html.escape(picture.title)
        parts.append(f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{data}">')
    for original in experiment.originals():
        parts.append(f"<h2>Published: {html.escape(original.what)}</h2>{as_table(original.table)}")
    parts.append(f"<h2>How it was measured</h2><p>Warm-up: {html.escape(experiment.warm_up)}.</p>{as_list(facts(run))}")
    page = run.path / "report.html"
    head = f'<meta charset="utf-8"><title>{html.escape(experiment.title)}</title><style>{STYLE}</style>'
    page.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>')
    return page


def as_table(frame: pd.DataFrame) -> str:
    """A frame as a table."""
    return str(frame.to_html(index=False, border=0, na_rep="-"))


def warnings(run: Run) -> str:
    """What the reader must know before anything else, on the page."""
    return "".join(f'<p class="warning">{html.escape(one)}</p>' for one in said_first(run))


def said_first(run: Run) -> list[str]:
    """What the reader must know before anything else."""
    said = []
    if run.scale != "full":
        said.append(f"A {run.scale} run: it shows the shape, not the figures.")
    said += [f"WRONG DATA in {name}, which therefore has no figure: {why}." for name, why in run.wrong.items()]
    if run.missing:
        said.append(f"Not finished: {len(run.missing)} of {len(run.rows)} rows were not measured.")
    disturbed = [name for name, kept in run.kept.items() if kept.disturbed]
    if disturbed:
        said.append(f"Others used the processors during: {', '.join(disturbed)}.")
    return said


def as_list(said: Mapping[str, str]) -> str:
    """Facts on the page."""
    items = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in said.items())
    return f"<dl>{items}</dl>"


def facts(run: Run) -> dict[str, str]:
    """Machine, versions, options and disturbance."""
    foreign = [kept.attempts[-1].foreign for kept in run.kept.values() if kept.attempts]
    pressure = [kept.attempts[-1].pressure for kept in run.kept.values() if kept.attempts]
    again = sum(len(kept.attempts) - 1 for kept in run.kept.values())
    return {
        "begun": run.began,
        **run.options,
        **run.machine,
        **{f"sha256 of {name}": value for name, value in run.binaries.items()},
        "processors used by others": f"{max(foreign, default=0):.1%} in the worst row",
        "processors waited for": f"{max(pressure, default=0):.1%} of the time in the worst row",
        "rows measured again": str(again),
    }

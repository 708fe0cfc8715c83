"""A run in a document: its tables between two lines of comment, its drawings in a folder `img`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import harness

from .experiment import Detailed, Experiment, Refused, Scale
from .report import facts, said_first
from .store import Run

# Of the facts of a run. `run.json` has all of them.
SHOWN = (
    "begun",
    "storage",
    "kernel",
    "processor",
    "cores",
    "memory_gib",
    "commit",
    "processors used by others",
    "processors waited for",
    "rows measured again",
)


def write(experiment: Experiment, run: Run, document: Path) -> None:
    """Replaces the section of the experiment.

    Raises `Refused` if the document has no lines that mark it.
    """
    begin, end = marks(run)
    old = document.read_text() if document.exists() else ""
    others = harness.between(old, begin, end, "")
    if others is None:
        raise Refused(f"{document} has no lines {begin} and {end}, between which this would go")
    document.write_text(harness.between(old, begin, end, section(experiment, run, document.parent, others)) or old)


def marks(run: Run) -> tuple[str, str]:
    """The lines around the section of an experiment."""
    return f"<!-- lab {run.experiment}: begin -->", f"<!-- lab {run.experiment}: end -->"


def has_place(run: Run, document: Path) -> bool:
    """Whether a document has a section of the experiment."""
    return document.exists() and all(mark in document.read_text() for mark in marks(run))


def section(experiment: Experiment, run: Run, folder: Path, others: str) -> str:
    """The tables, links to the drawings, and how it was measured. `others` is the rest of the document."""
    results = run.results()
    parts = [f"**{one}**" for one in said_first(run)]
    parts.append(table(experiment.table(results)))
    if isinstance(experiment, Detailed):
        parts.append(table(experiment.details(results)))
    # Documents in folders share the drawings of the folder above.
    images = Path("../img") if (folder / "../img").is_dir() else Path("img")
    (folder / images).mkdir(exist_ok=True)
    for picture in experiment.pictures(results):
        file = folder / images / f"lab-{run.experiment}-{picture.name}.svg"
        # Neither a date nor random names: the same figures are the same file.
        picture.figure.savefig(file, format="svg", metadata={"Date": None})
        parts.append(f"![{picture.title}]({images}/{file.name})")
    # Figures of a shorter run are not compared with published ones. Two experiments may share a table.
    for original in experiment.originals() if run.scale is Scale.FULL else ():
        shown = table(original.table)
        parts += [] if shown in others else [f"Published: {original.what}", shown]
    known = facts(run)
    parts.append("; ".join(f"{name}: {known[name]}" for name in SHOWN if name in known) + ".")
    return "\n\n".join(parts)


def table(frame: pd.DataFrame) -> str:
    """A frame in Markdown. A cell without a figure is empty."""
    header = [str(column) for column in frame.columns]
    return harness.table(header, frame.astype(str).replace("-", "").to_numpy().tolist())

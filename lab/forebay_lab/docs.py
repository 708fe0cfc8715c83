"""A run in a document: its tables between two lines of comment, its drawings in a folder `img`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import harness

from .experiment import Detailed, Experiment, Refused
from .report import facts, said_first
from .store import Run


def write(experiment: Experiment, run: Run, document: Path) -> None:
    """Replaces what a document says of the experiment.

    Raises `Refused` if it has no place for it.
    """
    begin, end = f"<!-- lab {run.experiment}: begin -->", f"<!-- lab {run.experiment}: end -->"
    old = document.read_text() if document.exists() else ""
    if harness.between(old, begin, end, "") is None:
        raise Refused(f"{document} has no lines {begin} and {end}, between which this would go")
    document.write_text(harness.between(old, begin, end, section(experiment, run, document.parent)) or old)


def section(experiment: Experiment, run: Run, folder: Path) -> str:
    """The tables, links to the drawings, and how it was measured."""
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
    for original in experiment.originals():
        parts += [f"Published: {original.what}", table(original.table)]
    # The folder says nothing to others; what it lies on does.
    said = {name: value for name, value in facts(run).items() if name != "where"}
    parts.append("; ".join(f"{name}: {value}" for name, value in said.items()) + ".")
    return "\n\n".join(parts)


def table(frame: pd.DataFrame) -> str:
    """A frame in Markdown."""
    header = [str(column) for column in frame.columns]
    return harness.table(header, frame.astype(str).to_numpy().tolist())

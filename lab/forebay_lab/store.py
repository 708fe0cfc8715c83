"""What was measured, on the disk.

    target/lab/runs/EXPERIMENT-SCALE-TIME/
        run.json        experiment, scale, machine, options, binaries, all rows of the scale, and of those that were
                        measured the summary and the disturbance; what was found wrong
        ROW.csv         raw samples of a row
        ROW.n.csv       those of an attempt that others disturbed, kept for whoever doubts
        ROW.wrong/      what the servers said in a row that found wrong data

`run.json` is replaced as a whole (written beside, then renamed), and a row is listed as measured only after its samples
are there: a run that was killed goes on with the row in which it ended, if the binaries are the same. A row that found
wrong data is never measured again: rows share nothing, so the others still count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from .experiment import Measured, Refused, Results, Row, Scale, Summary


@dataclass
class Attempt:
    """How a row was measured once. Shares of all cores' time, 0 to 1."""

    began: str
    elapsed_s: float
    pressure: float
    foreign: float
    disturbed: bool


@dataclass
class Kept:
    """A row that was measured."""

    summary: Summary
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def disturbed(self) -> bool:
        """The attempt that counts was disturbed: there was no better one."""
        return bool(self.attempts) and self.attempts[-1].disturbed


@dataclass
class Run:
    """One run of an experiment."""

    path: Path
    experiment: str
    scale: Scale
    machine: dict[str, str]
    options: dict[str, str]
    began: str
    rows: list[Row]
    binaries: dict[str, str] = field(default_factory=dict)
    """What of the project was measured: a hash of each."""
    kept: dict[str, Kept] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """Rows that found wrong data, and what."""

    @property
    def missing(self) -> list[Row]:
        """What is left to be measured."""
        return [row for row in self.rows if row.name not in self.kept and row.name not in self.wrong]

    def keep(self, row: Row, measured: Measured, attempts: Sequence[Attempt]) -> None:
        """Stores a row; then it counts."""
        measured.samples.to_csv(self.path / f"{row.name}.csv", index=False)
        self.kept[row.name] = Kept(measured.summary, list(attempts))
        self.save()

    def keep_aside(self, row: Row, number: int, measured: Measured) -> None:
        """Stores an attempt that does not count."""
        measured.samples.to_csv(self.path / f"{row.name}.{number}.csv", index=False)

    def condemn(self, row: Row, why: str) -> None:
        """Stores that a row found wrong data."""
        self.wrong[row.name] = why
        self.save()

    def save(self) -> None:
        """Writes `run.json`."""
        fields = {
            "experiment": self.experiment,
            "scale": self.scale.value,
            "began": self.began,
            "machine": self.machine,
            "options": self.options,
            "rows": [asdict(row) for row in self.rows],
            "binaries": self.binaries,
            "kept": {name: asdict(kept) for name, kept in self.kept.items()},
            "wrong": self.wrong,
        }
        self.path.mkdir(parents=True, exist_ok=True)
        beside = self.path / "run.json.new"
        with beside.open("w") as file:
            json.dump(fields, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path / "run.json")

    def results(self) -> Results:
        """Everything that was measured so far."""
        measured = [row for row in self.rows if row.name in self.kept]
        samples = {row.name: pd.read_csv(self.path / f"{row.name}.csv") for row in measured}
        return Results(measured, samples, {row.name: self.kept[row.name].summary for row in measured})


def begin(
    runs: Path,
    experiment: str,
    scale: Scale,
    rows: Sequence[Row],
    machine: dict[str, str],
    options: dict[str, str],
    binaries: dict[str, str] | None = None,
) -> Run:
    """A new run; there is nothing of it on the disk before it is saved."""
    now = datetime.now(UTC)
    path = runs / f"{experiment}-{scale.value}-{now:%Y%m%d-%H%M%S-%f}"
    return Run(path, experiment, scale, machine, options, now.isoformat(timespec="seconds"), list(rows), binaries or {})


def load(path: Path) -> Run:
    """A run from the disk."""
    try:
        fields = json.loads((path / "run.json").read_text())
        kept = {
            name: Kept(kept["summary"], [Attempt(**attempt) for attempt in kept["attempts"]])
            for name, kept in fields["kept"].items()
        }
        return Run(
            path,
            fields["experiment"],
            Scale(fields["scale"]),
            fields["machine"],
            fields["options"],
            fields["began"],
            [Row(**row) for row in fields["rows"]],
            fields.get("binaries", {}),
            kept,
            fields.get("wrong", {}),
        )
    except FileNotFoundError:
        raise Refused(f"{path} is no run: there is no run.json in it") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path}/run.json is damaged ({error!r}): remove the folder") from None


def all_runs(runs: Path, experiment: str | None = None, scale: Scale | None = None) -> list[Run]:
    """All runs that can be read, the oldest first."""
    found = [load(path.parent) for path in sorted(runs.glob("*/run.json"))]
    fitting = [run for run in found if experiment in (None, run.experiment) and scale in (None, run.scale)]
    return sorted(fitting, key=lambda run: run.began)


def unfinished(runs: Path, wanted: Run, only: Sequence[Row]) -> Run | None:
    """The newest run that would be the same as `wanted`, and that lacks one of some rows."""
    same = [
        run
        for run in all_runs(runs, wanted.experiment, wanted.scale)
        if (run.rows, run.options, run.binaries) == (wanted.rows, wanted.options, wanted.binaries)
    ]
    return next((run for run in reversed(same) if any(row in run.missing for row in only)), None)

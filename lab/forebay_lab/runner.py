"""Measures the rows of a run, one after the other.

A row during which others took more than `DISTURBED` of the processors is measured again, at most `ATTEMPTS` times in
all unless told otherwise; the attempt with the least disturbance counts, the others are kept beside it. What a
model says is never disturbed. A row that finds wrong data ends the run at once, and has no figure.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import harness
from comparison.cpu import Meter

from .experiment import Experiment, Lies, Measured, Row, Scale, Work
from .ledger import Entry, Ledger
from .store import Attempt, Run

DISTURBED = 0.15
# A smoke run says nothing about speed.
ATTEMPTS = {Scale.SMOKE: 1, Scale.QUICK: 3, Scale.FULL: 3}


class Watcher(Protocol):
    """Is told how it goes on."""

    def row(self, row: Row, number: int) -> None:
        """A row begins, for the so-many-th time."""

    def progress(self, seconds: float) -> None:
        """So many seconds of it are done."""

    def measured(self, row: Row, attempt: Attempt) -> None:
        """This time it has ended."""

    def done(self, row: Row) -> None:
        """It will not be measured again."""


@dataclass(frozen=True)
class Place:
    """Where a run works, and what it notes there."""

    folder: Path
    ledgers: Path
    attempts: int
    """Of a row, if others disturb it."""


def go(experiment: Experiment, run: Run, place: Place, watcher: Watcher, only: Sequence[Row] | None = None) -> None:
    """Measures what is missing of a run, or of some of its rows."""
    run.save()
    with Ledger(place.ledgers) as ledger:
        shared = own_folder(place, ledger)
        for row in [row for row in run.missing if only is None or row in only]:
            tries: list[tuple[Attempt, Measured]] = []
            while len(tries) < place.attempts and (not tries or tries[-1][0].disturbed):
                watcher.row(row, len(tries) + 1)
                try:
                    tries.append(attempt(experiment, row, place, shared, watcher.progress, run.path))
                except Lies as error:
                    run.condemn(row, str(error))
                    raise
                watcher.measured(row, tries[-1][0])
            tries.sort(key=lambda one: one[0].foreign, reverse=True)
            for number, (_, measured) in enumerate(tries[:-1], start=1):
                run.keep_aside(row, number, measured)
            run.keep(row, tries[-1][1], [one for one, _ in tries])
            watcher.done(row)


def attempt(
    experiment: Experiment, row: Row, place: Place, shared: Path, progress: Callable[[float], None], run: Path
) -> tuple[Attempt, Measured]:
    """Measures a row once, in a folder of its own."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with Ledger(place.ledgers) as ledger:
        folder = own_folder(place, ledger)
        meter = Meter(())
        try:
            measured = experiment.measure(row, Work(folder, shared, ledger, progress))
        except Lies:
            keep_logs(folder, run / f"{row.name}.wrong")
            raise
        usage = meter.read()
    foreign = round(usage.foreign, 4)
    disturbed = row.timed and foreign > DISTURBED
    return Attempt(began, round(usage.elapsed_s, 1), round(usage.pressure, 4), foreign, disturbed), measured


def keep_logs(folder: Path, to: Path) -> None:
    """What the servers of a row said, for whoever looks for the cause."""
    to.mkdir(exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, to)


def own_folder(place: Place, ledger: Ledger) -> Path:
    """A new folder that goes with the ledger."""
    folder = place.folder / f"forebay-lab-{time.time_ns()}"
    ledger.add(Entry("folder", str(folder)))
    folder.mkdir(parents=True)
    return folder


# What experiments run, and how each says which one it is.
TOOLS = {
    "mariadb": ("mariadbd", "--version"),
    "sysbench": ("sysbench", "--version"),
    "java": ("java", "--version"),
    "go": ("go", "version"),
    "xfs": ("mkfs.xfs", "-V"),
    "losetup": ("losetup", "--version"),
}


def machine() -> dict[str, str]:
    """What is measured on, and with what."""
    return harness.machine() | {name: harness.output(command) for name, command in TOOLS.items()}

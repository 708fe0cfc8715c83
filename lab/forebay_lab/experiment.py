"""What an experiment is.

An experiment has *rows*: things that are measured in the same way, to be set side by side. A row gives *samples*, one
line of numbers for each interval or each measured point, and from them a *summary*. What is drawn comes from samples
and summaries alone, so that a report can be made again later from what was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .ledger import Ledger

Summary = Mapping[str, float | str]


class Scale(StrEnum):
    """How long a run takes: `smoke` shows that the lab works and says nothing about speed."""

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"


class Refused(Exception):
    """What was asked for cannot be done; the message says why, and what to do."""


class Lies(Exception):
    """What was read back is not what was written, or what was counted does not add up: no figure of this row counts."""


class Binary(StrEnum):
    """What of the project is measured, or measured with."""

    FOREBAY = "forebay"
    NULL = "forebay-null"
    MODEL = "flashcache-model"
    FLASH_BENCH = "flash-bench"


@dataclass(frozen=True)
class Row:
    """One thing to measure."""

    name: str
    seconds: float
    """How long it is expected to take: for the progress, not a limit."""
    parameters: Mapping[str, float | str] = field(default_factory=dict)
    timed: bool = True
    """What it gives depends on how busy the machine is."""


@dataclass(frozen=True)
class Measured:
    """What a row gave."""

    samples: pd.DataFrame
    summary: Summary


@dataclass(frozen=True)
class Work:
    """What a row works with."""

    folder: Path
    """Of its own, on what is measured; removed afterwards."""
    shared: Path
    """Of the run, on the same file system: what several rows begin with; removed at its end."""
    ledger: Ledger
    progress: Callable[[float], None]
    """Takes the seconds of the row that are done."""


@dataclass(frozen=True)
class Picture:
    """One drawing of a report."""

    name: str
    title: str
    figure: Figure


@dataclass(frozen=True)
class Original:
    """Figures of the published experiment: a table to be read beside ours."""

    what: str
    table: pd.DataFrame


@dataclass(frozen=True)
class Results:
    """What is known of a run: rows in their order, those that were measured."""

    rows: Sequence[Row]
    samples: Mapping[str, pd.DataFrame]
    summaries: Mapping[str, Summary]


@runtime_checkable
class Detailed(Protocol):
    """An experiment that measures more than one table can show."""

    def details(self, results: Results) -> pd.DataFrame:
        """The second table."""


class Experiment(Protocol):
    """See the top of the file."""

    @property
    def name(self) -> str:
        """As people type it."""

    @property
    def title(self) -> str:
        """In a few words."""

    @property
    def warm_up(self) -> str:
        """What of each row is dropped, in words, for the report."""

    def needs(self) -> Sequence[str]:
        """Commands that must be there."""

    def binaries(self) -> Sequence[Binary]:
        """What is built of the project before anything is measured."""

    def rows(self, scale: Scale) -> Sequence[Row]:
        """What is measured, in this order."""

    def measure(self, row: Row, work: Work) -> Measured:
        """Measures one row."""

    def table(self, results: Results) -> pd.DataFrame:
        """The figures side by side, ratios first."""

    def pictures(self, results: Results) -> Sequence[Picture]:
        """The drawings."""

    def originals(self) -> Sequence[Original]:
        """What was published."""

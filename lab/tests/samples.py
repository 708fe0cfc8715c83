"""An experiment without a benchmark, for the tests of what runs and reports experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from forebay_lab.experiment import Binary, Measured, Original, Picture, Results, Row, Scale, Work
from forebay_lab.plots import curves, figure


@dataclass
class Counting:
    """Each row counts how often it was measured; `before` is called at the beginning of each."""

    before: Callable[[Row, Work], None] = lambda _row, _work: None
    measured: list[str] = field(default_factory=list)
    name: str = "counting"
    title: str = "Counting <rows> & more"
    warm_up: str = "none"

    def needs(self) -> Sequence[str]:
        return []

    def binaries(self) -> Sequence[Binary]:
        return []

    def rows(self, scale: Scale) -> Sequence[Row]:
        return [Row(name, 1.0, {"scale": scale.value}) for name in ("a", "b", "c")]

    def measure(self, row: Row, work: Work) -> Measured:
        self.before(row, work)
        self.measured.append(row.name)
        work.progress(0.5)
        return Measured(pd.DataFrame({"t_s": [1, 2], "n": [len(self.measured), 0.5]}), {"n": len(self.measured)})

    def table(self, results: Results) -> pd.DataFrame:
        return pd.DataFrame([{"row": row.name, "n": results.summaries[row.name]["n"]} for row in results.rows])

    def pictures(self, results: Results) -> Sequence[Picture]:
        drawn, (axes,) = figure(1)
        for row in results.rows:
            frame = results.samples[row.name]
            curves(axes, frame["t_s"].tolist(), frame["n"].tolist(), row.name)
        return [Picture("n", "How many", drawn)]

    def originals(self) -> Sequence[Original]:
        return [Original("fingers", pd.DataFrame({"hand": ["left"], "n": [5]}))]


class Silent:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def row(self, row: Row, number: int) -> None:
        self.told.append(f"{row.name} {number}")

    def progress(self, seconds: float) -> None:
        self.told.append(f"{seconds}")

    def measured(self, row: Row, attempt: object) -> None:
        del row, attempt

    def done(self, row: Row) -> None:
        self.told.append(f"{row.name} done")

"""The database of `oltp` on two flash cards of 2010: the flash behind a model of each card, full at the start.

On this machine the processors limit the fast rows of `oltp`: its flash has writes to spare, which a full card of 2010
had not. So the card is modelled, and is as much smaller as this machine is slower than the published one. The factor is
the same for all rows. It comes from the first row alone, the flash without a cache and without a card: what this
machine asks for if its flash is no limit. Where that is something else, `--chips` says so.

Every row of a card is measured three times in a full run, all of them once before any again. Figures are medians.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import pandas as pd

from . import mariadb, oltp, stack
from .experiment import Binary, Measured, Original, Picture, Results, Row, Scale, Summary, Work
from .mariadb import Options
from .oltp import FIFTY, Length, threshold, timed_options
from .plots import over_time
from .stack import Backend, Store

# The published machine asked its card for 27,000 reads and 8,000 writes a second. This one asked its flash for 4,694
# and 1,813 (`lab/lab run oltp-cards --full --row raw`), so its card has one of CHIPS chips. On another machine the last
# column of that row is the number for `--chips`.
PUBLISHED_S = 27_000 + 8_000
ASKED_S = 4_694 + 1_813
CHIPS = round(PUBLISHED_S / ASKED_S)

# Also a quick run writes its card over before it counts: until its spare area is used a card collects nothing.
LENGTHS = oltp.LENGTHS | {Scale.QUICK: replace(oltp.LENGTHS[Scale.QUICK], warm_up_s=60, measured_s=30)}
LETTERS = {"d": "card D", "t": "card T"}
TIMES = {Scale.SMOKE: 1, Scale.QUICK: 1, Scale.FULL: 3}
RAW = "raw"
BASE, FLASH = "flashcache", "alone"

PICTURES = (
    ("tps", "transactions/s", "Throughput"),
    ("p95_ms", "p95, ms", "95th percentile of latency"),
)


@dataclass(frozen=True)
class Kind:
    """One thing that is measured on each card."""

    name: str
    what: str
    store: Store
    options: tuple[str, ...] = ()


def kinds(length: Length) -> list[Kind]:
    """The rows of a card, the one that others are compared with first."""
    time = timed_options(length.flush_period_s)
    return [
        Kind(BASE, "FlashCache model, threshold 50 %", Store.FLASHCACHE, FIFTY),
        Kind(FLASH, "the card alone", Store.PAST),
        Kind("forebay-50", "Forebay, threshold 50 %", Store.FOREBAY, threshold(50)),
        Kind("forebay-time", "Forebay, time-based", Store.FOREBAY, time),
    ]


@dataclass(frozen=True)
class OltpCards:
    """The experiment, with one of so many of the chips."""

    chips: int = CHIPS
    name: str = "oltp-cards"
    title: str = "A database on cards of 2010"
    warm_up: str = (
        "caches read the image until they have it; then the first seconds of load are dropped "
        f"({LENGTHS[Scale.QUICK].warm_up_s} s of a quick run, {LENGTHS[Scale.FULL].warm_up_s} s of a full one)"
    )

    def needs(self) -> Sequence[str]:
        return [*mariadb.NEEDS, "sysbench", *stack.needs(Store.PAST)]

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FOREBAY, Binary.MODEL]

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        numbers = {name: value for name, value in asdict(length).items() if isinstance(value, int)}
        common = {**numbers, "scale": scale.value, "tables": length.tables.count, "rows": length.tables.rows}
        around_s = 8 + length.tables.count * length.tables.rows / 100_000
        seconds = around_s + length.warm_up_s + length.measured_s
        rows = [Row(RAW, seconds, {**common, "kind": RAW, "what": "flash, no card", "letter": "", "card": ""})]
        for time in range(1, TIMES[scale] + 1):
            for letter in LETTERS:
                for kind in kinds(length):
                    own = {
                        "kind": kind.name,
                        "what": kind.what,
                        "letter": letter,
                        "card": f"card-{letter}:{self.chips}",
                        "options": " ".join(kind.options),
                    }
                    rows.append(Row(f"{letter}-{kind.name}-{time}", seconds, {**common, **own}))
        return rows

    def measure(self, row: Row, work: Work) -> Measured:
        scale = Scale(str(row.parameters["scale"]))
        length = LENGTHS[scale]
        known = {kind.name: kind for kind in kinds(length)} | {RAW: Kind(RAW, "", Store.PAST)}
        kind = known[str(row.parameters["kind"])]
        backend = Backend(kind.store, kind.options, length.cache_mib, str(row.parameters["card"]))
        measured = oltp.measure_on(backend, length, Options(length.buffer_pool_mib, length.log_mib), work)
        if not backend.card:
            return measured
        of_flash = round(stack.card_amplification(work.folder), 3)
        return Measured(measured.samples, {**measured.summary, "of_flash": of_flash})

    def table(self, results: Results) -> pd.DataFrame:
        found = by_kind(results)
        lines = []
        for (letter, kind), runs in found.items():
            speeds = [float(run["tps"]) for run in runs]
            bases = [middle(found.get((letter, base), []), "tps") for base in (BASE, FLASH)]
            lines.append(
                {
                    "row": name(results, letter, kind),
                    "to FlashCache": oltp.ratio(median(speeds), bases[0]),
                    "to the card alone": oltp.ratio(median(speeds), bases[1]),
                    "transactions/s": round(median(speeds), 1),
                    "of runs": ", ".join(f"{speed:.1f}" for speed in speeds),
                    "CV": round(middle(runs, "cv"), 3),
                    "worst window": round(middle(runs, "tps_min"), 1),
                    "p95, ms": round(middle(runs, "all_p95_ms")),
                    "p99, ms": round(middle(runs, "all_p99_ms")),
                }
            )
        return pd.DataFrame(lines)

    def details(self, results: Results) -> pd.DataFrame:
        lines = []
        for (letter, kind), runs in by_kind(results).items():
            line: dict[str, object] = {"row": name(results, letter, kind)}
            for title, (column, form) in oltp.DETAILS.items():
                line[title] = format(middle(runs, column), form) if column in runs[0] else "-"
            asked = middle(runs, "reads_s") + middle(runs, "writes_s")
            line["pages on flash for each written"] = format(middle(runs, "of_flash"), ".2f") if letter else "-"
            line["published reads and writes to these"] = "-" if letter else oltp.ratio(PUBLISHED_S, asked)
            lines.append(line)
        return pd.DataFrame(lines)

    def pictures(self, results: Results) -> Sequence[Picture]:
        found = []
        for letter, card in LETTERS.items():
            mine = [row for row in results.rows if row.parameters["letter"] == letter and row.name.endswith("-1")]
            if not mine:
                continue
            first = Results(mine, results.samples, results.summaries)
            for column, y, title in PICTURES:
                drawn = over_time(
                    oltp.lines(first, column), y, oltp.warm_up_of(results), logarithmic=column == "p95_ms"
                )
                found.append(Picture(f"{letter}-{column}", f"{title}, {card}", drawn))
        return found

    def originals(self) -> Sequence[Original]:
        return oltp.Oltp().originals()


def by_kind(results: Results) -> Mapping[tuple[str, str], list[Summary]]:
    """The runs of each kind on each card, cards apart."""
    order = ["", *LETTERS]
    found: dict[tuple[str, str], list[Summary]] = {}
    for row in sorted(results.rows, key=lambda row: order.index(str(row.parameters["letter"]))):
        key = (str(row.parameters["letter"]), str(row.parameters["kind"]))
        found.setdefault(key, []).append(results.summaries[row.name])
    return found


def middle(runs: Sequence[Summary], column: str) -> float:
    """The median of a figure; 0 if there is none."""
    return median(float(run[column]) for run in runs) if runs else 0.0


def name(results: Results, letter: str, kind: str) -> str:
    """Of a line: the card, with its chips, and what is on it."""
    row = next(row for row in results.rows if (row.parameters["letter"], row.parameters["kind"]) == (letter, kind))
    return " ".join(word for word in (str(row.parameters["card"]), str(row.parameters["what"])) if word)

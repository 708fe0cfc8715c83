"""A flash cache under a database: sysbench's OLTP reads and writes on MariaDB, beside the published run under MySQL.

Rows: the disk without a cache, the flash by itself, three caches in front of the disk (nbdkit's, the model of
FlashCache's algorithm, Forebay in its ways of writing back), and four settings of the database on Forebay.

Before a row every cache has read the whole image once: the published runs warmed up for an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import pandas as pd

from . import mariadb, stack, sysbench
from .database import Content, measure
from .experiment import Binary, Measured, Original, Picture, Results, Row, Scale, Summary, Work
from .mariadb import Database, Options
from .observe import means
from .plots import Line, over_time
from .stack import Backend, Mounted, Store
from .sysbench import Tables

ORIGINAL = pd.DataFrame(
    [
        ("no cache (disks only)", "barely registers", "-", "-", "-", "crushed by I/O wait"),
        ("FlashCache, no time-based flushing", "~600", "1", "~7,500", "~2,500", "uneven"),
        ("vCache, no time-based flushing", "more than twice", "2 or more", "~12,500", "~6,000", "uneven"),
        ("vCache, time-based flushing", "about three times", "~3", "~27,000", "just under 8,000", "flat"),
    ],
    columns=["run", "transactions/s", "to FlashCache", "reads/s", "writes/s", "stability"],
)

# Column, what it is, title.
PICTURES = (
    ("tps", "transactions/s", "Throughput"),
    ("p95_ms", "p95, ms", "95th percentile of latency"),
    ("reads_s", "reads/s", "Reads of the block device"),
    ("writes_s", "writes/s", "Writes of the block device"),
    ("cpu", "share of the processors", "Processors"),
    ("iowait", "share of the processors", "I/O wait"),
    ("dirty_mib", "MiB", "Dirty data"),
    ("disk_written_mib_s", "MiB/s", "Written to the disk"),
)
# Nothing but what the row is about makes Forebay write back.
ONLY = ("idle_delay=off",)

# Columns of the second table: what is shown of a summary, and how.
DETAILS = {
    "reads/s": ("reads_s", ".0f"),
    "writes/s": ("writes_s", ".0f"),
    "hits": ("hits", ".1%"),
    "dirty at the end, MiB": ("dirty_mib_end", ".0f"),
    "from disk, MiB/s": ("disk_read_mib_s", ".2f"),
    "to disk, MiB/s": ("disk_written_mib_s", ".2f"),
    "to flash, MiB/s": ("flash_written_mib_s", ".2f"),
    "CPU": ("cpu", ".0%"),
    "of it the cache": ("server_cpu", ".0%"),
    "I/O wait": ("iowait", ".0%"),
}


@dataclass(frozen=True)
class Length:
    """How much is measured at a scale. Times in seconds.

    The buffer pool is a quarter of the data in a quick run, and in a full one a twentieth, as in the published runs.
    The image is smaller than the cache, headers and all: in FlashCache's sets, places of the disk that lie as far apart
    as the cache is large push each other out.
    """

    tables: Tables
    buffer_pool_mib: int
    log_mib: int
    image_mib: int
    cache_mib: int
    threads: int
    warm_up_s: int
    measured_s: int
    interval_s: int
    flush_period_s: int


LENGTHS = {
    Scale.SMOKE: Length(Tables(2, 2_000), 16, 16, 480, 512, 4, 2, 4, 1, 2),
    Scale.QUICK: Length(Tables(2, 250_000), 32, 64, 480, 512, 16, 6, 16, 2, 10),
    Scale.FULL: Length(Tables(8, 600_000), 64, 256, 2240, 2304, 32, 60, 180, 10, 60),
}


class Group(StrEnum):
    """Rows that are set in relation to each other."""

    MAIN = ""
    QUARTER = "4x"
    """A buffer pool of a quarter of the data."""
    SMALL = "small"
    """A cache of less than half of the data."""


# What ratios are to: FlashCache, nbdkit, the disk, the flash.
BASES = {
    Group.MAIN: ("flashcache-50", "nbdkit", "disk", "raw"),
    Group.QUARTER: ("flashcache-4x", "", "", "raw-4x"),
    Group.SMALL: ("flashcache-small", "", "disk", "raw"),
}
# Dirty thresholds of FlashCache.
FIFTY, TEN = ("--dirty-thresh-pct", "50"), ("--dirty-thresh-pct", "10")
QUARTER_POOL_MIB = 300
SMALL_CACHE_MIB = 512


@dataclass(frozen=True)
class Kind:
    """One row: a back end and the settings of the database on it."""

    name: str
    what: str
    store: Store
    settings: str = "A"
    options: tuple[str, ...] = field(default=())
    group: Group = Group.MAIN

    def cache_mib(self, length: Length) -> int:
        """Size of the cache."""
        return SMALL_CACHE_MIB if self.group is Group.SMALL else length.cache_mib

    def buffer_pool_mib(self, length: Length) -> int:
        """Size of the buffer pool."""
        return QUARTER_POOL_MIB if self.group is Group.QUARTER else length.buffer_pool_mib


def tuned(*settings: str) -> tuple[str, ...]:
    """Options of `forebay run`."""
    return tuple(word for setting in (*ONLY, *settings) for word in ("--set", setting))


def threshold(percent: int) -> tuple[str, ...]:
    """Forebay writes back what is above a dirty share, and nothing else."""
    return tuned(f"dirty_low_pct={percent}", f"dirty_high_pct={min(90, percent + 30)}")


def timed_options(flush_period_s: int) -> tuple[str, ...]:
    """Forebay writes back everything within a period, evenly."""
    return tuned("dirty_low_pct=70", "dirty_high_pct=85", f"flush_period={flush_period_s}s")


def kinds(scale: Scale) -> list[Kind]:
    """The rows, those that the others are compared with first."""
    time = timed_options(LENGTHS[scale].flush_period_s)
    raw = Kind("raw", "raw flash", Store.RAW)
    model = Kind("flashcache-50", "FlashCache model, threshold 50 %", Store.FLASHCACHE, options=FIFTY)
    even = Kind("forebay-time", "Forebay, time-based", Store.FOREBAY, options=time)
    if scale is Scale.SMOKE:
        return [raw, model, even]
    rows = [
        raw,
        model,
        Kind("forebay-50", "Forebay, threshold 50 %", Store.FOREBAY, options=threshold(50)),
        even,
        Kind("nbdkit", "nbdkit cache", Store.NBDKIT, options=("cache=writeback",)),
        Kind("disk", "disk only", Store.DISK),
        Kind("forebay-through", "Forebay, write-through", Store.FOREBAY, options=("--mode", "writethrough")),
    ]
    return rows + more_kinds(time) if scale is Scale.FULL else rows


def more_kinds(time: tuple[str, ...]) -> list[Kind]:
    """What is worth another hour."""
    through_flush = (*FIFTY, "--flush", "device")
    quarter, small = "pool of a quarter", f"{SMALL_CACHE_MIB} MiB of cache"
    return [
        Kind("flashcache-10", "FlashCache model, threshold 10 %", Store.FLASHCACHE, options=TEN),
        Kind("forebay-10", "Forebay, threshold 10 %", Store.FOREBAY, options=threshold(10)),
        Kind("raw-4x", f"raw flash, {quarter}", Store.RAW, group=Group.QUARTER),
        Kind("flashcache-4x", f"FlashCache model, {quarter}", Store.FLASHCACHE, options=FIFTY, group=Group.QUARTER),
        Kind("forebay-4x", f"Forebay, time-based, {quarter}", Store.FOREBAY, options=time, group=Group.QUARTER),
        *(
            Kind(f"forebay-time-{name}", f"Forebay, time-based, settings {name}", Store.FOREBAY, name, time)
            for name in ("B", "C", "D")
        ),
        Kind("flashcache-small", f"FlashCache model, {small}", Store.FLASHCACHE, group=Group.SMALL),
        Kind("forebay-small", f"Forebay, {small}", Store.FOREBAY, group=Group.SMALL),
        Kind("flashcache-flush", "FlashCache model, FLUSH not ignored", Store.FLASHCACHE, options=through_flush),
    ]


@dataclass(frozen=True)
class Oltp:
    """The experiment."""

    name: str = "oltp"
    title: str = "A database on a flash cache"
    warm_up: str = (
        "every cache reads the whole image once before the row; then the first seconds of load are dropped "
        f"({LENGTHS[Scale.QUICK].warm_up_s} s of a quick run, {LENGTHS[Scale.FULL].warm_up_s} s of a full one)"
    )

    def needs(self) -> Sequence[str]:
        return [*mariadb.NEEDS, "sysbench", *stack.needs(Store.NBDKIT)]

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FOREBAY, Binary.MODEL]

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        around_s = 8 + length.tables.count * length.tables.rows / 100_000
        # The numbers; what the tables are is added in words of our own.
        parameters = {name: value for name, value in asdict(length).items() if isinstance(value, int)}
        parameters |= {"tables": length.tables.count, "rows": length.tables.rows}
        return [
            Row(
                kind.name,
                around_s + length.warm_up_s + length.measured_s,
                {
                    "scale": scale.value,
                    "what": kind.what,
                    "settings": kind.settings,
                    **parameters,
                    "cache_mib": kind.cache_mib(length),
                    "buffer_pool_mib": kind.buffer_pool_mib(length),
                    "group": kind.group.value,
                    "options": " ".join(kind.options),
                    "database": " ".join(mariadb.SETTINGS[kind.settings]),
                },
            )
            for kind in kinds(scale)
        ]

    def measure(self, row: Row, work: Work) -> Measured:
        scale = Scale(str(row.parameters["scale"]))
        length = LENGTHS[scale]
        kind = next(kind for kind in kinds(scale) if kind.name == row.name)
        options = Options(kind.buffer_pool_mib(length), length.log_mib, mariadb.SETTINGS[kind.settings])
        return measure_on(Backend(kind.store, kind.options, kind.cache_mib(length)), length, options, work)

    def table(self, results: Results) -> pd.DataFrame:
        def mean(name: str) -> float:
            return float(results.summaries[name]["tps"]) if name in results.summaries else 0.0

        lines = []
        for row in results.rows:
            summary = results.summaries[row.name]
            own = float(summary["tps"])
            to = [ratio(own, mean(base)) for base in BASES[Group(str(row.parameters.get("group", "")))]]
            lines.append(
                {
                    "row": row.parameters["what"],
                    **dict(zip(("to FlashCache", "to nbdkit", "to disk", "to raw"), to, strict=True)),
                    "transactions/s": summary["tps"],
                    "CV": summary["cv"],
                    "worst window": summary["tps_min"],
                    "mean p95, ms": summary["p95_ms"],
                    "worst p95, ms": summary["p95_ms_max"],
                }
            )
        return pd.DataFrame(lines)

    def details(self, results: Results) -> pd.DataFrame:
        def shown(summary: Summary, name: str, form: str) -> str:
            return format(summary[name], form) if name in summary else "-"

        lines = []
        for row in results.rows:
            summary = results.summaries[row.name]
            line = {"row": row.parameters["what"]}
            lines.append(line | {title: shown(summary, name, form) for title, (name, form) in DETAILS.items()})
        return pd.DataFrame(lines)

    def pictures(self, results: Results) -> Sequence[Picture]:
        return [
            Picture(
                column, title, over_time(lines(results, column), y, warm_up_of(results), logarithmic=column == "p95_ms")
            )
            for column, y, title in PICTURES
        ]

    def originals(self) -> Sequence[Original]:
        return [Original("MySQL on a 2.2 TB flash card in front of disks, 78 GiB of data, 32 threads, 2013", ORIGINAL)]


def measure_on(backend: Backend, length: Length, options: Options, work: Work) -> Measured:
    """sysbench on a database on a back end."""

    def fill(database: Database) -> None:
        mariadb.create(database)
        sysbench.prepare(length.tables, database)

    def use(database: Database, there: Mounted) -> Measured:
        observed = sysbench.run(
            length.tables,
            database,
            threads=length.threads,
            seconds=length.warm_up_s + length.measured_s,
            interval_s=length.interval_s,
            dropped_s=length.warm_up_s,
            device=there.gauges,
            ledger=work.ledger,
            progress=work.progress,
        )
        all_p = {f"all_p{share}_ms": sysbench.percentile(observed.printed, share / 100) for share in (95, 99)}
        return Measured(observed.samples, summarise(observed.samples, length.warm_up_s) | all_p)

    content = Content(f"oltp-{length.image_mib}", length.image_mib, "xfs", fill)
    return measure(content, backend, options, length.tables.names, work, use)


def summarise(samples: pd.DataFrame, warm_up_s: float) -> dict[str, float]:
    """Means after the warm-up; the coefficient of variation is that of the windows."""
    kept = samples[samples["t_s"] > warm_up_s]
    if kept.empty:
        kept = samples
    mean = float(kept["tps"].mean())
    return {
        "tps": round(mean, 1),
        "cv": round(float(kept["tps"].std(ddof=0)) / mean, 3) if mean else 0.0,
        "tps_min": round(float(kept["tps"].min()), 1),
        # Nothing was answered in a window without a latency.
        "p95_ms": round(float(kept["p95_ms"][kept["p95_ms"] > 0].mean()), 1),
        "p95_ms_max": round(float(kept["p95_ms"].max()), 1),
        **({"dirty_mib_end": float(kept["dirty_mib"].iloc[-1])} if "dirty_mib" in kept else {}),
        **means(kept),
    }


def lines(results: Results, column: str) -> list[Line]:
    """A line for each row that has it. Where nothing was answered within an interval there is no latency."""
    found = []
    for row in results.rows:
        samples = results.samples[row.name]
        if column not in samples:
            continue
        kept = samples[samples[column] > 0] if column == "p95_ms" else samples
        found.append(Line(str(row.parameters["what"]), kept["t_s"].tolist(), kept[column].tolist()))
    return found


def warm_up_of(results: Results) -> float:
    """Seconds that were dropped; the same for all rows."""
    return max((float(row.parameters["warm_up_s"]) for row in results.rows), default=0.0)


def ratio(one: float, other: float) -> str:
    """How many times."""
    return f"{one / other:.2f}" if other else "-"

"""A flash cache under a database: sysbench's OLTP reads and writes on MariaDB, beside the published run under MySQL.

Rows: the disk without a cache, the flash by itself, three caches in front of the disk (nbdkit's, the model of
FlashCache's algorithm, Forebay in its ways of writing back), and four settings of the database on Forebay.

Before a row every cache has read the whole image once: the published runs warmed up for an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import pandas as pd

from . import mariadb, stack, sysbench
from .database import Content, measure
from .experiment import Binary, Measured, Original, Picture, Results, Row, Scale, Work
from .mariadb import Database, Options
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
    ("p95_ms", "p95, ms", "Latency that 95 % keep"),
    ("reads_s", "reads/s", "Reads of the block device"),
    ("writes_s", "writes/s", "Writes of the block device"),
    ("cpu", "share of the processors", "Processors"),
    ("iowait", "share of the processors", "I/O wait"),
)
# Means of these are kept: rates of the block device, shares of the processors.
MEANS = ("reads_s", "writes_s", "cpu", "iowait", "server_cpu")
# Nothing but what the row is about makes Forebay write back.
ONLY = ("idle_delay=off",)


# Of a cache that does not hold the data: less than half of those of a full run.
SMALL_CACHE_MIB = 512


@dataclass(frozen=True)
class Length:
    """How much is measured at a scale. Times in seconds.

    The buffer pool is a quarter of the data in a quick run, and in a full one a twentieth, as in the published runs.
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
    Scale.SMOKE: Length(Tables(2, 2_000), 16, 16, 512, 512, 4, 2, 4, 1, 2),
    Scale.QUICK: Length(Tables(2, 250_000), 32, 64, 768, 512, 16, 6, 16, 2, 10),
    Scale.FULL: Length(Tables(8, 600_000), 64, 256, 4096, 2048, 32, 120, 180, 10, 120),
}


@dataclass(frozen=True)
class Kind:
    """One row: a back end and the settings of the database on it."""

    name: str
    what: str
    store: Store
    settings: str = "A"
    options: tuple[str, ...] = field(default=())
    cache_mib: int = 0
    """0: as at this scale."""


def cache_mib(kind: Kind, length: Length) -> int:
    """Size of the cache of a row."""
    return kind.cache_mib or length.cache_mib


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
    length = LENGTHS[scale]
    time = timed_options(length.flush_period_s)
    raw = Kind("raw", "raw flash", Store.RAW)
    model = Kind(
        "flashcache-50", "FlashCache model, threshold 50 %", Store.FLASHCACHE, options=("--dirty-thresh-pct", "50")
    )
    even = Kind("forebay-time", "Forebay, time-based", Store.FOREBAY, options=time)
    if scale is Scale.SMOKE:
        return [raw, model, even]
    rows = [
        Kind("disk", "disk only", Store.DISK),
        raw,
        Kind("nbdkit", "nbdkit cache", Store.NBDKIT, options=("cache=writeback",)),
        model,
        Kind("forebay-50", "Forebay, threshold 50 %", Store.FOREBAY, options=threshold(50)),
        even,
        Kind("forebay-through", "Forebay, write-through", Store.FOREBAY, options=("--mode", "writethrough")),
    ]
    return rows + more_kinds(time) if scale is Scale.FULL else rows


def more_kinds(time: tuple[str, ...]) -> list[Kind]:
    """What is worth an hour or two: other thresholds and settings, less cache than data, a FlashCache that flushes."""
    ten, flushing = ("--dirty-thresh-pct", "10"), ("--dirty-thresh-pct", "50", "--flush", "device")
    return [
        Kind("flashcache-10", "FlashCache model, threshold 10 %", Store.FLASHCACHE, options=ten),
        Kind("forebay-10", "Forebay, threshold 10 %", Store.FOREBAY, options=threshold(10)),
        Kind("flashcache-flush", "FlashCache model, 50 %, FLUSH not ignored", Store.FLASHCACHE, options=flushing),
        *(
            Kind(f"forebay-time-{name}", f"Forebay, time-based, settings {name}", Store.FOREBAY, name, time)
            for name in ("B", "C", "D")
        ),
        Kind(
            "flashcache-small",
            f"FlashCache model as it comes, {SMALL_CACHE_MIB} MiB",
            Store.FLASHCACHE,
            cache_mib=SMALL_CACHE_MIB,
        ),
        Kind("forebay-small", f"Forebay as it comes, {SMALL_CACHE_MIB} MiB", Store.FOREBAY, cache_mib=SMALL_CACHE_MIB),
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
                    "cache_mib": cache_mib(kind, length),
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
        options = Options(length.buffer_pool_mib, length.log_mib, mariadb.SETTINGS[kind.settings])
        backend = Backend(kind.store, kind.options, cache_mib(kind, length))

        def fill(database: Database) -> None:
            mariadb.create(database)
            sysbench.prepare(length.tables, database)

        def use(database: Database, there: Mounted) -> Measured:
            before = there.counters()
            observed = sysbench.run(
                length.tables,
                database,
                threads=length.threads,
                seconds=length.warm_up_s + length.measured_s,
                interval_s=length.interval_s,
                device=there.gauges,
                ledger=work.ledger,
                progress=work.progress,
            )
            summary = summarise(observed.samples, length.warm_up_s)
            return Measured(observed.samples, summary | grown(before, there.counters()))

        content = Content(f"oltp-{scale.value}", length.image_mib, "xfs", fill)
        return measure(content, backend, options, length.tables.names, work, use)

    def table(self, results: Results) -> pd.DataFrame:
        def mean(name: str) -> float:
            return float(results.summaries[name]["tps"]) if name in results.summaries else 0.0

        lines = []
        for row in results.rows:
            summary = results.summaries[row.name]
            lines.append(
                {
                    "row": row.parameters["what"],
                    "to FlashCache": ratio(mean(row.name), mean("flashcache-50")),
                    "to nbdkit": ratio(mean(row.name), mean("nbdkit")),
                    "to disk": ratio(mean(row.name), mean("disk")),
                    "to raw": ratio(mean(row.name), mean("raw")),
                    "transactions/s": summary["tps"],
                    "CV": summary["cv"],
                    "worst window": summary["tps_min"],
                    "p95 ms": summary["p95_ms"],
                    "reads/s": summary["reads_s"],
                    "writes/s": summary["writes_s"],
                    "CPU": f"{float(summary['cpu']):.0%}",
                    "of it the cache": f"{float(summary['server_cpu']):.0%}",
                    "I/O wait": f"{float(summary['iowait']):.0%}",
                }
            )
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
        "p95_ms": round(float(kept["p95_ms"].mean()), 1),
        "p95_ms_max": round(float(kept["p95_ms"].max()), 1),
        **{name: round(float(kept[name].mean()), 3) for name in MEANS},
    }


def lines(results: Results, column: str) -> list[Line]:
    """A line for each row. Where nothing was answered within an interval there is no latency."""
    found = []
    for row in results.rows:
        samples = results.samples[row.name]
        kept = samples[samples[column] > 0] if column == "p95_ms" else samples
        found.append(Line(str(row.parameters["what"]), kept["t_s"].tolist(), kept[column].tolist()))
    return found


def warm_up_of(results: Results) -> float:
    """Seconds that were dropped; the same for all rows."""
    return max((float(row.parameters["warm_up_s"]) for row in results.rows), default=0.0)


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Counters of a cache: by how much they grew over the run, warm-up included."""
    return {f"cache_{name}": after[name] - before.get(name, 0) for name in after}


def ratio(one: float, other: float) -> str:
    """How many times."""
    return f"{one / other:.2f}" if other else "-"

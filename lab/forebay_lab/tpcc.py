"""TPC-C on a flash cache: new orders a minute with three buffer pools, with neighbour and adaptive flushing on and off.

The client is go-tpc, without the waiting times of the standard: its figures are to be compared with each other only.
What counts is the mean of the last half of a run, as in the published one, which compared MySQL with a variant whose
main differences were these two ways to flush. Afterwards the first two consistency conditions of the standard must hold
(the client's own check of all of them takes minutes for each warehouse).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

import harness

from . import mariadb, servers, stack
from .database import Content, measure
from .experiment import Binary, Lies, Measured, Original, Picture, Refused, Results, Row, Scale, Work
from .mariadb import DATABASE, Database, Options
from .observe import Sample, means, observe
from .oltp import ratio, timed_options
from .plots import Line, over_time
from .ports import free_port
from .stack import Backend, Mounted, Store
from .sysbench import PATIENCE_S

ORIGINAL = pd.DataFrame(
    [
        ("13 GB (I/O bound)", 23_513, 30_436, 1.29),
        ("52 GB (half fits)", 71_774, 88_792, 1.23),
        ("144 GB (all fits)", 78_091, 109_631, 1.40),
    ],
    columns=["buffer pool", "MySQL 5.5.8", "Percona Server", "ratio"],
)
SOURCE = harness.ROOT / "lab/go-tpc"
CLIENT = harness.ROOT / "target/lab-go-tpc/go-tpc"
TABLES = ("customer", "district", "history", "item", "new_order", "order_line", "orders", "stock", "warehouse")
# A transaction that was rolled back, as those are that meet in a deadlock.
FAILED = re.compile(r"\] execute run failed")
# Of about 100 GB: the pools of the published runs as shares of the data.
POOLS = {"io-bound": ("I/O bound", 0.13), "half": ("half fits", 0.52), "memory": ("all fits", 1.44)}
MIB_PER_WAREHOUSE = 124
# TPC-C 5.11, 3.3.2.1 and 3.3.2.2: what has to be equal, and the rows where it is not.
CONSISTENT = {
    "W_YTD = sum(D_YTD)": """select count(*) from {0}.warehouse join
        (select d_w_id, sum(d_ytd) ytd from {0}.district group by d_w_id) d on w_id = d_w_id where w_ytd <> ytd""",
    "D_NEXT_O_ID - 1 = max(O_ID)": """select count(*) from {0}.district join
        (select o_w_id, o_d_id, max(o_id) newest from {0}.orders group by o_w_id, o_d_id) o
        on d_w_id = o_w_id and d_id = o_d_id where d_next_o_id - 1 <> newest""",
}
LINE = re.compile(
    r"\[Current\] NEW_ORDER - Takes\(s\): (?P<s>[\d.]+), Count: (?P<count>\d+), TPM: (?P<tpm>[\d.]+), .*?"
    r"Avg\(ms\): (?P<mean>[\d.]+), .*?95th\(ms\): (?P<p95>[\d.]+), 99th\(ms\): (?P<p99>[\d.]+)"
)


def pinned() -> str:
    """Version of the client, as its go.mod pins it."""
    found = re.search(r"go-tpc (v[\d.]+)", (SOURCE / "go.mod").read_text())
    return found[1] if found else "of unknown version"


@dataclass(frozen=True)
class Length:
    """How much is measured at a scale. Times in seconds."""

    warehouses: int
    log_mib: int
    image_mib: int
    cache_mib: int
    threads: int
    run_s: int
    interval_s: int
    flush_period_s: int


LENGTHS = {
    Scale.SMOKE: Length(1, 32, 1024, 640, 2, 4, 1, 2),
    Scale.QUICK: Length(2, 96, 1536, 768, 8, 20, 2, 10),
    Scale.FULL: Length(10, 512, 3000, 3072, 16, 180, 10, 60),
}


@dataclass(frozen=True)
class Kind:
    """One row."""

    store: Store
    pool: str
    neighbours: bool
    adaptive: bool

    @property
    def name(self) -> str:
        flags = [name for name, on in (("neighbours", self.neighbours), ("adaptive", self.adaptive)) if on]
        return "-".join([self.store.value, self.pool, *(flags or ["neither"])])

    @property
    def settings(self) -> Sequence[str]:
        """Of the database."""
        return (
            f"innodb_flush_neighbors={int(self.neighbours)}",
            f"innodb_adaptive_flushing={'ON' if self.adaptive else 'OFF'}",
            "innodb_io_capacity=2000",
            "innodb_io_capacity_max=4000",
        )


def kinds(scale: Scale) -> list[Kind]:
    """The rows. The published pair is neighbours without adaptive flushing (plain), and the reverse (tuned)."""
    plain, tuned = (True, False), (False, True)
    if scale is Scale.SMOKE:
        return [Kind(Store.FOREBAY, "half", *tuned)]
    if scale is Scale.QUICK:
        return [Kind(Store.FOREBAY, pool, *tuned) for pool in POOLS] + [Kind(Store.FOREBAY, "io-bound", *plain)]
    ours = [Kind(Store.FOREBAY, pool, *how) for pool in POOLS for how in (plain, (True, True), (False, False), tuned)]
    return [*ours, *(Kind(store, "io-bound", *tuned) for store in (Store.RAW, Store.DISK, Store.FLASHCACHE))]


@dataclass(frozen=True)
class Tpcc:
    """The experiment."""

    name: str = "tpcc"
    title: str = f"TPC-C on a flash cache (go-tpc {pinned()})"
    warm_up: str = "every cache reads the whole image once before the row; then the first half of the run is dropped"

    def needs(self) -> Sequence[str]:
        return [*mariadb.NEEDS, "go", *stack.needs(Store.RAW)]

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FOREBAY, Binary.MODEL]

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        around_s = 10 + length.warehouses * 4
        return [
            Row(
                kind.name,
                around_s + length.run_s,
                {
                    "scale": scale.value,
                    **asdict(length),
                    "store": kind.store.value,
                    "pool": kind.pool,
                    "buffer_pool_mib": pool_mib(kind.pool, length),
                    "neighbours": int(kind.neighbours),
                    "adaptive": int(kind.adaptive),
                    "database": " ".join(kind.settings),
                },
            )
            for kind in kinds(scale)
        ]

    def measure(self, row: Row, work: Work) -> Measured:
        scale = Scale(str(row.parameters["scale"]))
        length = LENGTHS[scale]
        kind = next(kind for kind in kinds(scale) if kind.name == row.name)
        client = Client(build(), length, free_port())
        options = Options(pool_mib(kind.pool, length), length.log_mib, kind.settings, client.port)
        forebay = timed_options(length.flush_period_s) if kind.store is Store.FOREBAY else ()
        backend = Backend(kind.store, forebay, length.cache_mib)

        def use(database: Database, there: Mounted) -> Measured:
            observed = observe(
                client.run(), parse, there.gauges, work.ledger, work.progress, limit_s=2 * length.run_s + PATIENCE_S
            )
            samples = every_interval(observed.samples, length)
            check(database)
            failed = sum(bool(FAILED.search(line)) for line in observed.printed)
            return Measured(samples, summarise(samples, length.run_s) | {"failed": failed})

        content = Content(f"tpcc-{scale.value}", length.image_mib, "xfs", client.fill)
        return measure(content, backend, options, TABLES, work, use)

    def table(self, results: Results) -> pd.DataFrame:
        def orders(kind: Kind) -> float:
            return float(results.summaries[kind.name]["notpm"]) if kind.name in results.summaries else 0.0

        lines = []
        for row in results.rows:
            summary, values = results.summaries[row.name], row.parameters
            store, pool = Store(str(values["store"])), str(values["pool"])
            mine = float(summary["notpm"])
            lines.append(
                {
                    "row": f"{values['store']}, {POOLS[pool][0]}",
                    "neighbours": "on" if values["neighbours"] else "off",
                    "adaptive": "on" if values["adaptive"] else "off",
                    "to plain": ratio(mine, orders(Kind(store, pool, neighbours=True, adaptive=False))),
                    "to raw": ratio(mine, orders(Kind(Store.RAW, pool, neighbours=False, adaptive=True))),
                    "NOTPM": summary["notpm"],
                    "CV": summary["cv"],
                    "p95 ms": summary["p95_ms"],
                    "p99 ms": summary["p99_ms"],
                    "failed": summary.get("failed", "-"),
                    "CPU": f"{float(summary['cpu']):.0%}",
                    "I/O wait": f"{float(summary['iowait']):.0%}",
                }
            )
        return pd.DataFrame(lines)

    def pictures(self, results: Results) -> Sequence[Picture]:
        drawn = []
        for pool, (what, _) in POOLS.items():
            rows = [row for row in results.rows if row.parameters["pool"] == pool]
            if not rows:
                continue
            lines = [
                Line(row.name, results.samples[row.name]["t_s"].tolist(), results.samples[row.name]["notpm"].tolist())
                for row in rows
            ]
            page = over_time(lines, "new orders/min", float(rows[0].parameters["run_s"]) / 2)
            drawn.append(Picture(f"notpm-{pool}", f"New orders a minute, {what}", page))
        return drawn

    def originals(self) -> Sequence[Original]:
        return [Original("1000 warehouses (about 100 GB) on flash, new orders/min of the last 30 minutes", ORIGINAL)]


@dataclass(frozen=True)
class Client:
    """go-tpc."""

    binary: Path
    length: Length
    port: int

    def command(self, *words: str) -> list[str]:
        """Its command line."""
        where = ["-H", "127.0.0.1", "-P", str(self.port), "-U", "root", "-D", DATABASE]
        return [str(self.binary), "tpcc", *where, "--warehouses", str(self.length.warehouses), *words]

    def fill(self, database: Database) -> None:
        """Makes the content."""
        mariadb.create(database)
        servers.run(self.command("-T", "2", "prepare", "--no-check"), limit_s=3600)

    def run(self) -> list[str]:
        """The command that is measured."""
        # Else a terminal that meets a deadlock leaves, and the others have less to do ever after.
        times = ["--ignore-error", "--time", f"{self.length.run_s}s", "--interval", f"{self.length.interval_s}s"]
        return self.command("-T", str(self.length.threads), *times, "run")


def check(database: Database) -> None:
    """Raises `Lies` if a condition of the standard does not hold."""
    for condition, query in CONSISTENT.items():
        wrong = int(database.ask(query.format(DATABASE))[0][0])
        if wrong:
            raise Lies(f"{condition} does not hold in {wrong} rows")


def build() -> Path:
    """Builds the client from the module proxy, if that was not done."""
    sums = SOURCE / "go.sum"
    if not CLIENT.exists() or CLIENT.stat().st_mtime < sums.stat().st_mtime:
        go = shutil.which("go")
        if go is None:
            raise Refused("there is no go on this machine, which builds the TPC-C client")
        CLIENT.parent.mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-o", str(CLIENT), "github.com/pingcap/go-tpc/cmd/go-tpc"]
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        done = subprocess.run(
            command, cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        if done.returncode:
            raise Refused(f"go-tpc cannot be built: {done.stderr.strip()[-servers.TAIL :]}")
        CLIENT.touch()
    return CLIENT


def pool_mib(pool: str, length: Length) -> int:
    """Size of a buffer pool."""
    return max(16, round(POOLS[pool][1] * length.warehouses * MIB_PER_WAREHOUSE))


def parse(line: str) -> Sample | None:
    """A line of an interval."""
    found = LINE.match(line)
    if found is None:
        return None
    return {
        "notpm": float(found["tpm"]),
        "orders": float(found["count"]),
        "mean_ms": float(found["mean"]),
        "p95_ms": float(found["p95"]),
        "p99_ms": float(found["p99"]),
    }


def every_interval(samples: pd.DataFrame, length: Length) -> pd.DataFrame:
    """A line for each interval. go-tpc prints none for one without a new order: it had none, and no latency."""
    if samples.empty:
        raise Refused("go-tpc made no new order at all")
    places: list[int] = []
    for clock_s in samples["clock_s"]:
        place = round(float(clock_s) / length.interval_s)
        places.append(max(place, places[-1] + 1 if places else 1))
    # The end of the run and that of its last interval are one: it may or may not be printed.
    last = max([length.run_s // length.interval_s - 1, *places])
    whole = samples.set_axis(pd.Index(places), axis="index").reindex(range(1, last + 1))
    whole[["notpm", "orders"]] = whole[["notpm", "orders"]].fillna(0)
    whole.insert(0, "t_s", [length.interval_s * number for number in whole.index])
    return whole


def summarise(samples: pd.DataFrame, run_s: float) -> dict[str, float]:
    """Means of the last half."""
    kept = samples[samples["t_s"] > run_s / 2]
    mean = float(kept["notpm"].mean())
    if not mean > 0:
        raise Refused("go-tpc made no new order in the last half of the run")
    return {
        "notpm": round(mean, 1),
        "cv": round(float(kept["notpm"].std(ddof=0)) / mean, 3) if mean else 0.0,
        **{name: round(float(kept[name].mean()), 3) for name in ("p95_ms", "p99_ms")},
        **means(kept),
    }

"""sysbench's OLTP workload, and what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import servers
from .experiment import Lies
from .ledger import Ledger
from .mariadb import DATABASE, USER, Database
from .observe import Observed, Sample, observe

LINE = re.compile(
    r"\[ (?P<t>\d+)s \] thds: \d+ tps: (?P<tps>[\d.]+) qps: [\d.]+ \(r/w/o: (?P<r>[\d.]+)/(?P<w>[\d.]+)/[\d.]+\) "
    r"lat \(ms,95%\): (?P<p95>[\d.]+) err/s: (?P<errors>[\d.]+)"
)


# A line of the histogram.
BAR = re.compile(r"\s+(?P<ms>[\d.]+) \|\**\s+(?P<count>\d+)$")
# The last transactions on a disk that is behind take a while.
PATIENCE_S = 600


@dataclass(frozen=True)
class Tables:
    """The data."""

    count: int
    rows: int

    @property
    def names(self) -> Sequence[str]:
        """As sysbench calls them."""
        return [f"sbtest{number}" for number in range(1, self.count + 1)]

    def options(self, database: Database) -> list[str]:
        """Where they are."""
        return [
            "--db-driver=mysql",
            f"--mysql-socket={database.socket}",
            f"--mysql-user={USER}",
            f"--mysql-password={USER}",
            f"--mysql-db={DATABASE}",
            f"--tables={self.count}",
            f"--table-size={self.rows}",
        ]


def prepare(tables: Tables, database: Database) -> None:
    """Fills the tables."""
    servers.run(["sysbench", "oltp_read_write", *tables.options(database), "--threads=2", "prepare"], limit_s=3600 * 4)


def parse(line: str) -> Sample | None:
    """A line of an interval."""
    found = LINE.match(line)
    if found is None:
        return None
    names = {"t_s": "t", "tps": "tps", "row_reads_s": "r", "row_writes_s": "w", "p95_ms": "p95", "errors_s": "errors"}
    return {name: float(found[group]) for name, group in names.items()}


def transactions(printed: Sequence[str]) -> int:
    """How many it says it has made: since the beginning, or up to what is dropped and after that."""
    found = [int(line[1]) for line in (re.match(r"\s+transactions:\s+(\d+)", line) for line in printed) if line]
    if not found:
        raise Lies("sysbench does not say how many transactions it has made")
    return sum(found)


def percentile(printed: Sequence[str], share: float) -> float:
    """Latency in ms that so much of all transactions keep, of the histogram at the end; 0 if there is none."""
    begin = next((at for at, line in enumerate(printed) if line.startswith("Latency histogram")), len(printed))
    counts = [(float(found[1]), int(found[2])) for found in map(BAR.match, printed[begin:]) if found]
    wanted, seen = share * sum(count for _, count in counts), 0
    for value, count in counts:
        seen += count
        if seen >= wanted:
            return value
    return 0.0


def run(
    tables: Tables,
    database: Database,
    *,
    threads: int,
    seconds: int,
    interval_s: int,
    dropped_s: int = 0,
    device: Callable[[], Mapping[str, float]],
    ledger: Ledger,
    progress: Callable[[float], None],
) -> Observed:
    """Reads and writes, a few rows much more often than others. Raises `Lies` if the server counted another number.

    With `dropped_s` what it prints at the end has a histogram, of what came after these seconds alone.
    """
    before = database.status("Com_commit")
    options = ["--rand-type=pareto", f"--threads={threads}", f"--time={seconds}", f"--report-interval={interval_s}"]
    options += [f"--report-checkpoints={dropped_s}", "--histogram"] if dropped_s else []
    command = ["sysbench", "oltp_read_write", *tables.options(database), *options, "run"]
    observed = observe(command, parse, device, ledger, progress, limit_s=2 * seconds + PATIENCE_S)
    made, counted = transactions(observed.printed), database.status("Com_commit") - before
    if made != counted:
        raise Lies(f"sysbench says that it has made {made} transactions, the server counted {counted}")
    return observed

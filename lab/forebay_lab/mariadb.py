"""A MariaDB server of our own: a folder for its data, a socket, no network unless asked for.

The settings are those of the published runs: `A` is what was usual on disks, `B` adds I/O threads, `C` is for flash
(much I/O, no writing of neighbours, early adaptive flushing), `D` both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import servers
from .experiment import Lies, Work

DATABASE = "lab"
USER = "lab"
NEEDS = ("mariadbd", "mariadb-install-db", "mariadb")

THREADS = ("innodb_read_io_threads=16", "innodb_write_io_threads=16")
FLASH = (
    "innodb_io_capacity=30000",
    "innodb_io_capacity_max=30000",
    "innodb_adaptive_flushing=ON",
    "innodb_adaptive_flushing_lwm=0",
    "innodb_flush_neighbors=0",
    "innodb_max_dirty_pages_pct=60",
)
# MariaDB's own defaults say neighbours and 200 operations a second, which is for disks.
PLAIN = ("innodb_flush_neighbors=1", "innodb_io_capacity=200")
SETTINGS: dict[str, Sequence[str]] = {"A": PLAIN, "B": (*PLAIN, *THREADS), "C": FLASH, "D": (*FLASH, *THREADS)}


@dataclass(frozen=True)
class Options:
    """How a server is started."""

    buffer_pool_mib: int
    log_mib: int
    settings: Sequence[str] = PLAIN
    port: int = 0
    """Of 127.0.0.1; 0: the socket only."""


@dataclass(frozen=True)
class Database:
    """A server that runs."""

    socket: Path
    pid: int

    @property
    def client(self) -> list[str]:
        """A client that prints what it is told, and nothing else."""
        return ["mariadb", "--no-defaults", "--batch", "--skip-column-names", "-uroot", f"--socket={self.socket}"]

    def ask(self, statement: str, *, limit_s: float = 1800) -> list[list[str]]:
        """The rows that a statement gives."""
        printed = servers.run([*self.client, "--execute", statement], limit_s=limit_s)
        return [line.split("\t") for line in printed.splitlines()]

    def status(self, name: str) -> int:
        """A counter of the server."""
        return int(self.ask(f"show global status like '{name}'")[0][1])

    def checksums(self, tables: Sequence[str]) -> dict[str, str]:
        """A checksum of all rows of each table. Raises `Lies` if one cannot be read."""
        found = {}
        for table in tables:
            name, checksum = self.ask(f"checksum table {DATABASE}.{table} extended")[0]
            if checksum == "NULL":
                raise Lies(f"{name} cannot be read")
            found[name] = checksum
        return found


def install(data: Path) -> None:
    """Makes an empty data folder."""
    data.mkdir()
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--user=root"]
    servers.run(["mariadb-install-db", "--no-defaults", f"--datadir={data}", *options])


@contextmanager
def running(data: Path, options: Options, work: Work, name: str = "mariadb") -> Iterator[Database]:
    """A server on a data folder until the block ends, then stopped in an orderly way."""
    socket, log = work.folder / f"{name}.sock", work.folder / f"{name}.log"
    network = [f"--bind-address=127.0.0.1 --port={options.port}"] if options.port else ["--skip-networking"]
    command = [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--socket={socket}",
        f"--pid-file={work.folder}/{name}.pid",
        *" ".join(network).split(),
        "--skip-log-bin",
        "--innodb-flush-method=O_DIRECT",
        f"--innodb-buffer-pool-size={options.buffer_pool_mib}M",
        f"--innodb-log-file-size={options.log_mib}M",
        "--innodb-flush-log-at-trx-commit=1",
        "--innodb-buffer-pool-load-at-startup=0",
        "--innodb-buffer-pool-dump-at-shutdown=0",
        "--max-prepared-stmt-count=100000",
        *(f"--{setting}" for setting in options.settings),
    ]

    def answers(running: servers.Server) -> bool:
        return "ready for connections" in running.said()

    with servers.server(command, log, work.ledger, answers, limit_s=300) as started:
        yield Database(socket, started.pid)


def create(database: Database, host: str = "localhost") -> None:
    """The schema and the user of the benchmark."""
    database.ask(f"create database {DATABASE}")
    database.ask(f"create user {USER}@{host} identified by '{USER}'; grant all on {DATABASE}.* to {USER}@{host}")

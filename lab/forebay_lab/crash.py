"""A database whose cache is killed, again and again: what was acknowledged must be there, and nothing by half.

The cache is ended by SIGKILL: while clients change the database, right after its file system was mounted again, or
while the database recovers from the last time. What is left of the database is killed with it, everything is started
on the same image and the same cache file, and after each recovery the clients compare what they were promised with what
is there (`bank`). At the end the image alone, without the cache, must have the same tables.

A kill keeps what the kernel has; power that fails loses it as well. That is what the simulator is for.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

import pandas as pd

from . import bank, mariadb, oltp, plots, stack
from .database import Content, compare, image_of, read_alone
from .experiment import Binary, Lies, Measured, Original, Picture, Refused, Results, Row, Scale, Work
from .ledger import started
from .mariadb import Options
from .stack import Backend, Mounted, Store, check_room, copy_image, finish, mounted


class Moment(StrEnum):
    """When the cache is killed."""

    WRITING = "while clients write"
    MOUNTED = "right after the mount"
    RECOVERING = "while the database recovers"


# How often each comes, between a first and a last one while clients write. The file system recovers before all of
# them, the database before those of the first kind, and under those of the last.
CYCLE = (Moment.MOUNTED, Moment.RECOVERING, Moment.WRITING, Moment.WRITING, Moment.WRITING)
# Recovery of a database of this size takes about as long.
RECOVERING_MOST_S = 0.6


@dataclass(frozen=True)
class Length:
    """How much is done at a scale."""

    kills: int
    accounts: int
    clients: int
    writing_most_s: float
    buffer_pool_mib: int
    image_mib: int
    cache_mib: int

    @property
    def log_mib(self) -> int:
        """Of the database."""
        return self.buffer_pool_mib


LENGTHS = {
    Scale.SMOKE: Length(4, 2_000, 2, 0.5, 16, 512, 256),
    Scale.QUICK: Length(6, 50_000, 4, 2, 16, 512, 256),
    Scale.FULL: Length(100, 500_000, 8, 4, 32, 1024, 512),
}
# Of a cache that has to make room all the time.
SMALL_CACHE_MIB = 96


@dataclass(frozen=True)
class Kind:
    """One row."""

    name: str
    what: str
    store: Store
    options: tuple[str, ...] = field(default=())
    is_small: bool = False

    def cache_mib(self, length: Length) -> int:
        """Size of the cache."""
        return SMALL_CACHE_MIB if self.is_small else length.cache_mib


def kinds(scale: Scale) -> list[Kind]:
    """The rows."""
    back = Kind("forebay", "Forebay, write-back", Store.FOREBAY)
    through = Kind("forebay-through", "Forebay, write-through", Store.FOREBAY, ("--mode", "writethrough"))
    disk = Kind("disk", "disk only, through the daemon", Store.DISK)
    full = [
        Kind("forebay-time", "Forebay, time-based", Store.FOREBAY, oltp.timed_options(2)),
        Kind("forebay-small", f"Forebay, write-back, {SMALL_CACHE_MIB} MiB", Store.FOREBAY, is_small=True),
    ]
    return {Scale.SMOKE: [back], Scale.QUICK: [back, through], Scale.FULL: [back, *full, through, disk]}[scale]


class Killed(Exception):
    """The cache was: everything above it is let go of."""


Sample = dict[str, float | str | bool]


@dataclass
class Bout:
    """A row under way."""

    backend: Backend
    image: Path
    options: Options
    length: Length
    work: Work
    clients: Sequence[bank.Client] = ()
    kills: int = 0

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """What is refused in here after a kill was possible before the first: then it is wrong data."""
        try:
            yield
        except Refused as error:
            if self.kills == 0:
                raise
            raise Lies(f"after {self.kills} kills it cannot be used any more: {error}") from error

    def mounted(self) -> AbstractContextManager[Mounted]:
        """The file system, through the cache."""
        return mounted(self.backend, self.image, self.work, warm=self.kills == 0)

    def database(self, there: Mounted) -> AbstractContextManager[mariadb.Database]:
        """The database on it."""
        return mariadb.running(there.path / "data", self.options, self.work)

    def kill(self, there: Mounted) -> Sample:
        """Kills what serves the volume; returns how much only the cache had."""
        if not all(started(pid) for pid in there.pids):
            raise Lies("the daemon has ended before it was killed")
        cache = there.cache()
        self.kills += 1
        for pid in there.pids:
            os.kill(pid, signal.SIGKILL)
        return {"dirty_mib": cache.dirty_mib} if cache else {}

    def killed_when_mounted(self) -> Sample:
        """Kills the cache when the file system has recovered."""
        sample: Sample = {}
        with contextlib.suppress(Killed), ExitStack() as stack:
            with self.usable():
                there = stack.enter_context(self.mounted())
            sample = self.kill(there)
            raise Killed
        return sample

    def killed_in_recovery(self, delay_s: float) -> Sample:
        """Kills the cache while the database recovers, or just after."""
        sample: Sample = {"recovered": False}
        leave, struck = threading.Event(), threading.Event()
        with contextlib.suppress(Killed), ExitStack() as stack, ThreadPoolExecutor(1) as thread:
            with self.usable():
                there = stack.enter_context(self.mounted())

            def strike() -> None:
                if not leave.wait(delay_s):
                    struck.set()
                    sample.update(self.kill(there))

            stricken = thread.submit(strike)
            try:
                with self.database(there) as database:
                    stricken.result()
                    sample["recovered"] = True
                    os.kill(database.pid, signal.SIGKILL)
                    raise Killed
            except Refused as error:
                # Without its storage it cannot come up; with it, it must.
                if not struck.is_set():
                    raise Lies(f"after {self.kills} kills the database does not recover: {error}") from error
                stricken.result()
                raise Killed from error
            finally:
                leave.set()
        return sample

    def killed_while_writing(self, dice: random.Random) -> Sample:
        """Kills the cache while clients write; tells how the recovery from the last time went."""
        with contextlib.suppress(Killed), ExitStack() as stack, self.usable():
            began = time.monotonic()
            there = stack.enter_context(self.mounted())
            mounted_s = time.monotonic() - began
            database = stack.enter_context(self.database(there))
            answered_s = time.monotonic() - began
            steps = bank.check(database, self.length.accounts, self.clients)
            self.clients = [
                bank.Client(
                    number,
                    steps.get(number, 0),
                    self.length.accounts,
                    database,
                    self.work.ledger,
                    f"{dice.random()}",
                )
                for number in range(self.length.clients)
            ]
            bank.work(self.clients, dice.uniform(0, self.length.writing_most_s))
            sample = self.kill(there)
            os.kill(database.pid, signal.SIGKILL)
            raise Killed
        for client in self.clients:
            client.end()
        made = sum(client.acknowledged - steps.get(client.number, 0) for client in self.clients)
        times: Sample = {"mounted_s": round(mounted_s, 3), "answered_s": round(answered_s, 3)}
        return sample | {"transactions": made} | (times if self.kills > 1 else {})

    def last(self) -> None:
        """Looks at everything once more, then takes the cache away and looks at the image alone."""
        with self.usable(), self.mounted() as there, self.database(there) as database:
            bank.check(database, self.length.accounts, self.clients)
            through = database.checksums(bank.TABLES)
        finish(self.backend, self.image, self.work)
        compare(through, read_alone(self.image, self.options, bank.TABLES, self.work))


@dataclass(frozen=True)
class Crash:
    """The experiment."""

    name: str = "crash"
    title: str = "A database whose cache is killed"
    warm_up: str = "none: what counts is that nothing is missing, and how long it takes until everything is back"

    def needs(self) -> Sequence[str]:
        return [*mariadb.NEEDS, *stack.needs(Store.FOREBAY)]

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FOREBAY]

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        return [
            Row(
                kind.name,
                10 + length.kills * (3 + length.writing_most_s / 2),
                {
                    "scale": scale.value,
                    "what": kind.what,
                    **asdict(length),
                    "cache_mib": kind.cache_mib(length),
                    "options": " ".join(kind.options),
                },
            )
            for kind in kinds(scale)
        ]

    def measure(self, row: Row, work: Work) -> Measured:
        scale = Scale(str(row.parameters["scale"]))
        length = LENGTHS[scale]
        kind = next(kind for kind in kinds(scale) if kind.name == row.name)
        check_room(work.folder, 2 * length.image_mib + length.cache_mib + 512)
        options = Options(length.buffer_pool_mib, length.log_mib)
        content = Content(
            f"crash-{scale.value}", length.image_mib, "xfs", lambda there: bank.fill(there, length.accounts)
        )
        image = work.folder / "image"
        copy_image(image_of(content, options, work), image)
        backend = Backend(kind.store, kind.options, kind.cache_mib(length))
        samples = kill_again_and_again(Bout(backend, image, options, length, work), row)
        return Measured(samples, summarise(samples))

    def table(self, results: Results) -> pd.DataFrame:
        lines = []
        for row in results.rows:
            summary = results.summaries[row.name]
            lines.append(
                {
                    "row": row.parameters["what"],
                    "kills": summary["kills"],
                    "transactions acknowledged": summary["transactions"],
                    "of them lost": 0,  # Else there is no figure: see `Lies`.
                    "dirty when killed, MiB": summary["dirty_mib"],
                    "mounted again after, s": summary["mounted_s"],
                    "at worst": summary["mounted_s_max"],
                    "database answers after, s": summary["answered_s"],
                    "at worst ": summary["answered_s_max"],
                }
            )
        return pd.DataFrame(lines)

    def pictures(self, results: Results) -> Sequence[Picture]:
        drawn, (axes,) = plots.figure(1)
        for row in results.rows:
            kept = results.samples[row.name].dropna(subset=["answered_s"])
            axes.plot(kept["kill"], kept["answered_s"], marker=".", label=str(row.parameters["what"]))
        plots.finish(axes, "kill", "s until the database answers")
        return [Picture("answered", "Time until the database answers again", drawn)]

    def originals(self) -> Sequence[Original]:
        return []


def kill_again_and_again(bout: Bout, row: Row) -> pd.DataFrame:
    """Makes all kills of a row; the first and the last are while clients write. A line for each."""
    dice = random.Random(f"{row.name} {row.parameters['scale']}")
    samples: list[Sample] = []
    began = time.monotonic()
    between = [CYCLE[number % len(CYCLE)] for number in range(bout.length.kills - 2)]
    dice.shuffle(between)
    before = Moment.WRITING
    for moment in (Moment.WRITING, *between, Moment.WRITING):
        # Times are of the recovery from the kill before this one.
        sample: Sample = {"kill": bout.kills + 1, "moment": moment.value, "moment_before": before.value}
        before = moment
        match moment:
            case Moment.WRITING:
                sample |= bout.killed_while_writing(dice)
            case Moment.MOUNTED:
                sample |= bout.killed_when_mounted()
            case Moment.RECOVERING:
                sample |= bout.killed_in_recovery(dice.uniform(0, RECOVERING_MOST_S))
        samples.append(sample)
        bout.work.progress(time.monotonic() - began)
    bout.last()
    return pd.DataFrame(samples)


def summarise(samples: pd.DataFrame) -> dict[str, float]:
    """How often, how much, how long: medians and the worst."""
    times = {name: samples[name].dropna() for name in ("mounted_s", "answered_s")}
    return {
        "kills": len(samples),
        "transactions": int(samples["transactions"].sum()),
        "dirty_mib": round(float(samples["dirty_mib"].median()), 1) if "dirty_mib" in samples else 0.0,
        **{name: round(float(values.median()), 2) for name, values in times.items()},
        **{f"{name}_max": round(float(values.max()), 2) for name, values in times.items()},
    }

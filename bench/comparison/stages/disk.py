"""Groups on the emulated 7200 rpm disk: what a cache is for.

Each target has a disk of its own, so that none waits for another's. nbdkit's cache may be as large as Forebay's; both
are warmed up by the same work for the same time, and both start with what the fill left in them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from comparison import content, servers
from comparison.model import FOREBAY, RAW, Case, Stage, Target
from comparison.scale import Scale
from comparison.stages.work import parallel, shape
from fio_client import fio, raw
from harness import Failure

NO_CACHE = "no cache"
NBDKIT = "nbdkit cache"
EMULATE = ("--emulate", "hdd-7200")
# The third part fixes where the hot blocks are: without it, it depends on the seed, and no cache would ever be warm.
ZIPF = "--random_distribution=zipf:1.1:0.3"


@contextmanager
def prepared(
    folder: Path, *, work: int, cache: int, warm: tuple[Case, float] | None, with_raw: bool
) -> Iterator[list[Target]]:
    """The disk alone, nbdkit's cache over it, Forebay over it, and, if asked for, raw flash; filled, checked, warm."""
    with ExitStack() as stack:
        disk = stack.enter_context(servers.emulated_disk(folder, "plain", work))
        own = servers.daemon(folder, FOREBAY, cache=cache, volume=work, settings=servers.NO_IDLING, options=EMULATE)
        targets = [
            disk.target(NO_CACHE),
            stack.enter_context(servers.nbdkit_cache(folder, work, cache)),
            stack.enter_context(own).target(FOREBAY),
        ]
        if with_raw:
            targets.append(Target(RAW, raw(servers.written_file(folder / "raw", work))))
        at_once(targets, lambda target: fill_and_check(target, work))
        if warm is not None:
            case, seconds = warm
            at_once(targets, lambda target: warm_up(target, case, seconds))
        yield targets


def fill_and_check(target: Target, work: int) -> None:
    """Fills one target and reads it back."""
    content.fill(target.below or target.client, work)
    content.check(target.client, work)


def warm_up(target: Target, case: Case, seconds: float) -> None:
    """The work that will be measured, for longer."""
    fio(target.client, [*case.options(target), "--randrepeat=0", "--randseed=1"], seconds)


def at_once(targets: list[Target], action: Callable[[Target], None]) -> None:
    """Does something to all targets at the same time, since the disks are slow. The first failure counts."""
    failures: list[Failure] = []

    def run(target: Target) -> None:
        try:
            action(target)
        except Failure as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def mix(scale: Scale) -> list[Stage]:
    """Twice and four times as much data as cache."""
    stages = []
    for times in (2, 4):
        work = times * scale.disk_cache_bytes
        job = ("--rw=randrw", "--rwmixread=70", "--bs=4k", "--norandommap", ZIPF, f"--size={work}")
        shapes = [(32, 1), (8, 4)] if scale.deep else [(32, 1)]
        cases = [
            Case(
                f"mix 70/30, {times} x cache, {shape(*each)}",
                (*job, *parallel(*each)),
                seconds=scale.disk_seconds,
                flash=False,
            )
            for each in shapes
        ]
        stages.append(stage(scale, "mix", f"Mix over {times} x the cache", cases, work, with_raw=False))
    return stages


def database(scale: Scale) -> list[Stage]:
    """16 KiB pages, two reads for each write, hot pages, a flush every 32 writes; the data fits the cache."""
    work = scale.disk_cache_bytes // 2
    job = ("--rw=randrw", "--rwmixread=67", "--bs=16k", "--norandommap", ZIPF, f"--size={work}")
    case = Case(
        "database 16k, depth 8 x 1",
        (*job, *parallel(8, 1)),
        seconds=scale.disk_seconds,
        flash=False,
        writes_per_flush=32,
    )
    return [stage(scale, "database", "Database-like", [case], work, with_raw=True)]


def stage(scale: Scale, group: str, title: str, cases: list[Case], work: int, *, with_raw: bool) -> Stage:
    """A stage on the emulated disk, warmed up by its first case."""
    warm = (cases[0], scale.warm_s)
    prepare = partial(prepared, work=work, cache=scale.disk_cache_bytes, warm=warm, with_raw=with_raw)
    names = (NO_CACHE, NBDKIT, FOREBAY, *((RAW,) if with_raw else ()))
    disk_bytes = 5 * work + 2 * scale.disk_cache_bytes
    return Stage(group, title, tuple(cases), prepare, names, disk_bytes, 5 + scale.warm_s + work / 20e6)

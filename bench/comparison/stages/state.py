"""Groups about Forebay in different states: how full, how dirty, how large, how much it writes, what it costs idle.

In `states` and `sizes` the states are the targets, so that they are measured alternating and stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from comparison import content, servers
from comparison.model import FOREBAY, RAW, Case, Stage, Target
from comparison.scale import Scale
from comparison.stages.work import parallel, random_io
from fio_client import fio, raw
from harness import GIB, MIB

EMPTY, HALF, FULL, DIRTY = "empty", "half full", "full", "dirty"
ANYWHERE = "random read 4k of 2 x the cache"
SIZES = {"10 GiB": 10 * GIB, "100 GiB": 100 * GIB, "1 TiB": 1024 * GIB}
# The share of the cache that uniform overwrites go to. They stay dirty: nothing is destaged, so reclaim has to move
# what is still valid.
OVERWRITTEN_SHARE = 3


@contextmanager
def filled(
    folder: Path, name: str, *, cache: int, volume: int, settings: tuple[str, ...] = ()
) -> Iterator[servers.Daemon]:
    """A daemon whose backing store has content and whose cache is empty."""
    disk = folder / f"{name}.disk"
    content.fill(raw(disk), volume)
    with servers.daemon(folder, name, cache=cache, volume=volume, settings=settings) as server:
        yield server


def read_through(client: list[str], size: int, offset: int = 0) -> None:
    """Reads everything once, so that it is cached, clean."""
    fio(client, ["--rw=read", "--bs=256k", "--iodepth=8", f"--size={size}", f"--offset={offset}"])


@contextmanager
def in_states(folder: Path, *, scale: Scale) -> Iterator[list[Target]]:
    """The raw device, and four daemons in four states."""
    cache, work = scale.cache_bytes, scale.work_bytes
    with ExitStack() as stack:
        device = Target(RAW, raw(servers.written_file(folder / "raw", cache)))
        content.fill(device.client, work)
        content.check(device.client, work)
        empty = stack.enter_context(filled(folder, "empty", cache=cache, volume=work, settings=servers.HOLD_DIRTY))
        half = stack.enter_context(filled(folder, "half", cache=cache, volume=cache // 2, settings=servers.HOLD_DIRTY))
        full = stack.enter_context(filled(folder, "full", cache=cache, volume=2 * cache, settings=servers.HOLD_DIRTY))
        dirty = stack.enter_context(filled(folder, "dirty", cache=cache, volume=cache // 2, settings=servers.NO_IDLING))
        targets = [device, empty.target(EMPTY), half.target(HALF), full.target(FULL), dirty.target(DIRTY)]
        for server in (half, full, dirty):
            content.check(client_of(server), server.volume_size)
        content.check(client_of(empty), work)
        # What is read once in a hurry is not always kept: these two shall be hit.
        for server in (half, dirty):
            read_through(client_of(server), work)
        targets[1].before = empty.begin_anew
        targets[3].before = lambda: read_through(client_of(full), cache, offset=cache)
        targets[4].before = lambda: dirty_half(dirty)
        yield targets


def client_of(server: servers.Daemon) -> list[str]:
    """Options of fio that name this server."""
    return server.target(server.name).client


def dirty_half(server: servers.Daemon) -> None:
    """Makes half of the cache dirty, far above what destage begins at."""
    fio(client_of(server), ["--rw=write", "--bs=256k", "--iodepth=8", f"--size={server.volume_size}"])


def states(scale: Scale) -> list[Stage]:
    """Reads and writes of the same range in each state."""
    cases = (
        random_io("read", 32, 1, scale.work_bytes, scale.seconds),
        random_io("write", 32, 1, scale.work_bytes, scale.seconds),
        anywhere(scale),
    )
    disk = 11 * scale.cache_bytes
    names = (RAW, EMPTY, HALF, FULL, DIRTY)
    return [
        Stage("states", "States of the cache", cases, partial(in_states, scale=scale), names, disk, 5 + disk / 500e6)
    ]


def anywhere(scale: Scale) -> Case:
    """Reads of which about half miss, so that they fill a cache that is full."""
    case = random_io("read", 32, 1, 2 * scale.cache_bytes, scale.seconds, label=ANYWHERE)
    return Case(case.name, case.job, seconds=case.seconds, only=frozenset({FULL}))


@contextmanager
def of_sizes(folder: Path, *, scale: Scale) -> Iterator[list[Target]]:
    """The raw device, and a daemon for each size of the volume; a quarter of the work in each quarter of the volume."""
    part = scale.work_bytes // 4
    with ExitStack() as stack:
        device = servers.written_file(folder / "raw", scale.cache_bytes)
        targets = [Target(RAW, raw(device), extra=(f"--offset_increment={part}",))]
        for name, size in SIZES.items():
            server = stack.enter_context(
                servers.daemon(
                    folder,
                    name.replace(" ", "-"),
                    cache=scale.cache_bytes,
                    volume=size,
                    settings=servers.HOLD_DIRTY,
                )
            )
            targets.append(server.target(name, f"--offset_increment={size // 4}"))
        for target in targets:
            client = [*target.client, *target.extra, "--numjobs=4"]
            content.fill(client, part)
            content.check(client, part)
        yield targets


def sizes(scale: Scale) -> list[Stage]:
    """The same number of blocks, spread over more and more."""
    part = scale.work_bytes // 4
    cases = tuple(random_io(direction, 8, 4, part, scale.seconds) for direction in ("read", "write"))
    disk = 5 * scale.cache_bytes
    names = (RAW, *SIZES)
    return [Stage("sizes", "Sizes of the volume", cases, partial(of_sizes, scale=scale), names, disk, 3 + disk / 500e6)]


@contextmanager
def with_history(
    folder: Path, *, cache: int, volume: int, settings: tuple[str, ...], warm: tuple[str, ...]
) -> Iterator[list[Target]]:
    """A daemon whose log has gone round: what a new cache writes in its first round says nothing."""
    with filled(folder, FOREBAY, cache=cache, volume=volume, settings=settings) as server:
        content.check(client_of(server), volume)
        fio(client_of(server), warm)
        yield [server.target(FOREBAY)]


def amplification(scale: Scale) -> list[Stage]:
    """Overwrites, hot overwrites, and reads that fill a full cache; each run stores about one cache of data."""
    cache = scale.cache_bytes
    shape = parallel(32, 1)
    narrow, wide = cache // OVERWRITTEN_SHARE // MIB * MIB, 2 * cache
    bounded = (f"--io_size={cache}",)
    write = ("--rw=randwrite", "--bs=4k", "--norandommap", *shape)
    zipf = "--random_distribution=zipf:1.1:0.3"
    mixed = ("--rw=randrw", "--rwmixread=70", "--bs=4k", "--norandommap", *shape, f"--size={wide}")
    read = ("--rw=randread", "--bs=4k", "--norandommap", *shape, f"--size={wide}")
    plan = [
        (narrow, servers.HOLD_DIRTY, [("uniform overwrites of a third of the cache", (*write, f"--size={narrow}"))]),
        (cache, servers.NO_IDLING, [("zipf 1.1 overwrites of 1 x the cache", (*write, f"--size={cache}", zipf))]),
        (
            wide,
            servers.NO_IDLING,
            [
                ("reads of 2 x the cache, 100 % full", read),
                ("mix 70/30 over 2 x the cache, 100 % full", mixed),
            ],
        ),
    ]
    return [amplified(cache, volume, settings, work, bounded) for volume, settings, work in plan]


def amplified(
    cache: int,
    volume: int,
    settings: tuple[str, ...],
    work: list[tuple[str, tuple[str, ...]]],
    bounded: tuple[str, ...],
) -> Stage:
    """One stage of it: the first work twice as warm-up, then all."""
    warm = (*work[0][1], f"--io_size={2 * cache}")
    prepare = partial(with_history, cache=cache, volume=volume, settings=settings, warm=warm)
    # Not `flash`: stalls are judged only where the raw device is measured beside, so that its own can be told.
    cases = tuple(Case(name, (*job, *bounded), flash=False) for name, job in work)
    disk = cache + volume
    return Stage("amplification", work[0][0], cases, prepare, (FOREBAY,), disk, 2 + (disk + 3 * cache) / 200e6)


@contextmanager
def at_rest(folder: Path, *, scale: Scale) -> Iterator[list[Target]]:
    """A daemon that has served something, and has nothing left to do."""
    with servers.daemon(folder, FOREBAY, cache=scale.cache_bytes, volume=scale.work_bytes) as server:
        target = server.target(FOREBAY)
        content.fill(target.client, scale.work_bytes)
        content.check(target.client, scale.work_bytes)
        server.clean()
        yield [target]


def idle(scale: Scale) -> list[Stage]:
    """Nobody asks anything for 20 seconds. Once is enough: the counter of the kernel is exact to a tick."""
    case = Case("idle", (), unit="% of a core", seconds=20, flash=False)
    disk = scale.cache_bytes + scale.work_bytes
    return [Stage("idle", "Idle", (case,), partial(at_rest, scale=scale), (FOREBAY,), disk, 3, rounds_max=1)]

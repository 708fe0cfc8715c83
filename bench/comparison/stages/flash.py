"""Groups that run at the speed of flash: everything fits the cache, and destage is held back.

The raw device is a file of the size of the cache on the same storage, with O_DIRECT: what the cache has below it.
`nbdkit file` and `qemu-nbd writeback` may answer from the page cache, that is from memory; that is how they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from comparison import content, servers
from comparison.model import CROWD, CROWDED, FOREBAY, RAW, Case, Stage, Target
from comparison.scale import Scale
from comparison.stages.work import parallel, random_io
from comparison.stages.work import sequential as sequential_case
from fio_client import raw

NULL = "null volume"
PEERS = ("nbdkit file", "qemu-nbd writeback", "qemu-nbd none")


@contextmanager
def prepared(folder: Path, *, scale: Scale, names: tuple[str, ...]) -> Iterator[list[Target]]:
    """The targets called `names`, each filled and its content checked, in that order."""
    work, cache = scale.work_bytes, scale.cache_bytes
    with ExitStack() as stack:
        makers: dict[str, Callable[[], AbstractContextManager[Target]]] = {
            RAW: lambda: raw_file(folder, cache),
            FOREBAY: lambda: cached_volume(folder, cache, work),
            NULL: lambda: servers.null_volume(folder, work),
            "nbdkit file": lambda: servers.nbdkit_file(folder, work),
            "nbdkit memory": lambda: servers.nbdkit(folder, "nbdkit memory", "memory", str(work)),
            "qemu-nbd writeback": lambda: servers.qemu_nbd(folder, "writeback", work),
            "qemu-nbd none": lambda: servers.qemu_nbd(folder, "none", work),
        }
        targets = []
        for name in names:
            target = stack.enter_context(makers[name]())
            if name == NULL:
                content.check_zeroes(target.client, work)
            else:
                content.fill(target.client, work)
                content.check(target.client, work)
            targets.append(target)
        yield targets


@contextmanager
def raw_file(folder: Path, size: int) -> Iterator[Target]:
    """The cache device without a cache."""
    yield Target(RAW, raw(servers.written_file(folder / "raw", size)))


@contextmanager
def cached_volume(folder: Path, cache: int, volume: int) -> Iterator[Target]:
    """Forebay, write-back, with destage held back."""
    with servers.daemon(folder, FOREBAY, cache=cache, volume=volume, settings=servers.HOLD_DIRTY) as server:
        yield server.target(FOREBAY)


def stage(scale: Scale, group: str, title: str, cases: list[Case], names: tuple[str, ...]) -> Stage:
    """A stage on these targets; the null volume only if this binary has it."""
    known = tuple(name for name in names if name != NULL or servers.has_null_volume())
    size = 2 * scale.cache_bytes + len(known) * scale.work_bytes
    prepare = partial(prepared, scale=scale, names=known)
    return Stage(group, title, tuple(cases), prepare, known, size, prepare_s=2 + size / 400e6)


def without_peers(scale: Scale, cases: list[Case], names: tuple[str, ...]) -> list[Case]:
    """When it has to be quick, peers are measured at depth 32 over one connection only."""
    if scale.wide:
        return cases
    known = frozenset(name for name in names if name != NULL or servers.has_null_volume())
    return [case if case.name.endswith("depth 32 x 1") else replace(case, only=known) for case in cases]


def hits(scale: Scale) -> list[Stage]:
    """Random reads of what is in the cache."""
    shapes = [(1, 1), (32, 1), (32, 4)]
    if scale.wide:
        shapes = [(1, 1), (8, 1), (32, 1), (8, 4), (32, 4)]
    if scale.deep:
        shapes = [(depth, connections) for connections in (1, 4) for depth in (1, 8, 32)]
    cases = [random_io("read", *each, scale.work_bytes, scale.seconds) for each in shapes]
    cases = without_peers(scale, cases, (RAW, FOREBAY, NULL))
    return [stage(scale, "hits", "Random reads of cached data", cases, (RAW, FOREBAY, NULL, *PEERS))]


def writes(scale: Scale) -> list[Stage]:
    """Random overwrites."""
    shapes = [(1, 1), (32, 1), (32, 4)]
    if scale.deep:
        shapes = [(depth, connections) for connections in (1, 4) for depth in (1, 8, 32)]
    cases = [random_io("write", *each, scale.work_bytes, scale.seconds) for each in shapes]
    cases = without_peers(scale, cases, (RAW, FOREBAY))
    return [stage(scale, "writes", "Random writes, write-back", cases, (RAW, FOREBAY, *PEERS))]


def peers(scale: Scale) -> tuple[str, ...]:
    """All of them, if there is time."""
    return PEERS if scale.wide else PEERS[:2]


def flush(scale: Scale) -> list[Stage]:
    """Each write is followed by a FLUSH; on a file, by fdatasync."""
    job = ("--rw=randwrite", "--bs=4k", "--norandommap", f"--size={scale.work_bytes}")
    case = Case("write 4k + flush, depth 1 x 1", (*job, *parallel(1, 1)), seconds=scale.seconds, writes_per_flush=1)
    return [stage(scale, "flush", "Write and FLUSH", [case], (RAW, FOREBAY, *peers(scale)))]


def sequential(scale: Scale) -> list[Stage]:
    """Large requests. The reads come first in each round, before anything scattered the data."""
    cases = [sequential_case(direction, 8, scale.work_bytes, scale.seconds) for direction in ("read", "write")]
    return [stage(scale, "sequential", "Sequential", cases, (RAW, FOREBAY, *peers(scale)))]


def null(scale: Scale) -> list[Stage]:
    """Servers with nothing behind them. Nothing of it is about a device."""
    if not servers.has_null_volume():
        return []
    shapes = [("read", 1, 1), ("read", 32, 1), ("read", 32, 4)]
    if scale.wide:
        shapes.append(("write", 32, 4))
    cases = [random_io(*each, scale.work_bytes, scale.seconds) for each in shapes]
    cases = [replace(case, flash=False) for case in cases]
    return [stage(scale, "null", "The export path alone", cases, ("nbdkit memory", NULL))]


@contextmanager
def with_and_without_crowd(folder: Path, *, scale: Scale) -> Iterator[list[Target]]:
    """The same volume twice; at the second one many clients are connected that ask for nothing."""
    work, cache = scale.work_bytes, scale.cache_bytes
    with ExitStack() as stack:
        targets = []
        for name, clients in ((FOREBAY, 0), (CROWDED, CROWD)):
            place = folder / f"clients-{clients}"
            place.mkdir()
            target = replace(stack.enter_context(cached_volume(place, cache, work)), name=name)
            content.fill(target.client, work)
            content.check(target.client, work)
            stack.enter_context(servers.idle_clients(place / f"{FOREBAY}.sock", clients))
            targets.append(target)
        yield targets


def crowd(scale: Scale) -> list[Stage]:
    """One connection at work, alone and beside a thousand that do nothing."""
    depths = (1, 32) if scale.wide else (32,)
    cases = [
        random_io(direction, depth, 1, scale.work_bytes, scale.seconds)
        for direction in ("read", "write")
        for depth in depths
    ]
    size = 2 * (scale.cache_bytes + scale.work_bytes)
    prepare = partial(with_and_without_crowd, scale=scale)
    title = f"One busy connection, and {CROWD} idle ones beside it"
    return [Stage("crowd", title, tuple(cases), prepare, (FOREBAY, CROWDED), size, prepare_s=4 + size / 400e6)]


def latency(scale: Scale) -> list[Stage]:
    """One connection alone, and the same with three others beside it, at the same depth of each."""
    depths = (1, 8, 32) if scale.wide else (8,)
    cases = [
        random_io(direction, depth, connections, scale.work_bytes, scale.seconds)
        for direction in ("read", "write")
        for depth in depths
        for connections in (1, 4)
    ]
    return [stage(scale, "latency", "Latency alone and at full load", cases, (RAW, FOREBAY))]

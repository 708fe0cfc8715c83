"""A file system on what is measured: the same wiring for every row, only what serves the block device differs.

    database -> file system -> loop device (direct I/O, 4 KiB sectors) -> file -> what is measured

The file is the FUSE export of Forebay or of the FlashCache model, `nbdfuse` over nbdkit's NBD export (its only way to a
file), or, for the raw flash, simply the image. Sectors are 4 KiB everywhere: FlashCache caches whole blocks only, and
databases of its time wrote their logs through the page cache, in whole pages.

What is slow is the same for all: a file on the flash that Forebay's model of a 7200 rpm disk makes slow. What is fast
is the flash as it is or, if a back end names a card, the flash behind Forebay's model of that card.

Invariants:
- An image is copied before it is measured: rows begin with the same bytes, and none sees what another one did.
- `finish` leaves the whole content in the image alone, so that it can be read without what was measured.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import harness
from comparison.cpu import TICKS_PER_S, server_ticks

from . import binaries, servers
from .experiment import Binary, Refused, Work
from .ledger import Entry, Ledger

SECTOR_BYTES = 4096
MIB = 1 << 20
CHUNK_BYTES = MIB
BLOCK_MIB = 4096 / MIB


class Store(StrEnum):
    """What serves the block device."""

    DISK = "disk"
    RAW = "raw"
    PAST = "past-cache"
    """The flash, or a card, over the same export as Forebay's."""
    NBDKIT = "nbdkit-cache"
    FOREBAY = "forebay"
    FLASHCACHE = "flashcache-model"


CACHES = frozenset({Store.NBDKIT, Store.FOREBAY, Store.FLASHCACHE})
# A cache must have a device to be started with, also where it caches nothing.
LEAST_CACHE = "64MiB"
CARD_DID = re.compile(r" as card-\S+: (?P<written>\d+) pages written, (?P<moved>\d+) moved")
SLOW = "hdd-7200"
# A cache on a card is warm when it finds so much of what is read, and must be after so many readings.
WARM = 0.99
PASSES_MAX = 20
# The model says once a second what it did.
COUNTED_S = 2.0


@dataclass(frozen=True)
class Backend:
    """One way to serve the block device: `options` are those of its command line."""

    store: Store
    options: tuple[str, ...] = ()
    cache_mib: int = 0
    card: str = ""
    """What the flash is made to be, as `--emulate-cache` takes it; nothing: what it is."""


@dataclass
class Mounted:
    """A file system that is there."""

    path: Path
    loop: str
    pids: Sequence[int]
    """What serves the block device."""
    cache: Callable[[], CacheCounts | None]
    """What the cache says of itself, if it is one that does."""

    def gauges(self) -> dict[str, float]:
        """Counts so far: reads and writes of the block device, bytes of each, processor seconds of what serves it, and
        those of the cache."""
        cache = self.cache()
        fields = [int(word) for word in Path(f"/sys/block/{Path(self.loop).name}/stat").read_text().split()]
        return {
            "reads": fields[0],
            "read_bytes": fields[2] * 512,
            "writes": fields[4],
            "written_bytes": fields[6] * 512,
            "server_s": server_ticks(self.pids) / TICKS_PER_S,
            **(asdict(cache) if cache else {}),
        }


@dataclass(frozen=True)
class CacheCounts:
    """What caches count, in the same words for all. All but the first only grow."""

    dirty_mib: float
    """So much is in the cache only, now."""
    found_blocks: float
    """Blocks of reads that it had."""
    asked_blocks: float
    """Blocks of all reads."""
    disk_read_mib: float
    disk_written_mib: float
    flash_written_mib: float
    """All that it wrote to its own device."""


def needs(store: Store) -> list[str]:
    """Commands that must be there."""
    common = ["losetup", "mount", "umount", "mkfs.xfs", "mkfs.ext4"]
    return [*common, "nbdkit", "nbdfuse"] if store is Store.NBDKIT else common


@contextmanager
def loop_device(file: Path, ledger: Ledger) -> Iterator[str]:
    """A loop device on a file, for direct I/O."""
    entry = Entry("loop", str(file))
    ledger.add(entry)
    command = ["losetup", "--direct-io=on", f"--sector-size={SECTOR_BYTES}", "--show", "--find", str(file)]
    # Undone here and not at the end of the row: afterwards what serves the file is gone, and the device has no name.
    try:
        yield servers.run(command).strip()
    finally:
        ledger.undo(entry)


@contextmanager
def mount(device: str, path: Path, ledger: Ledger) -> Iterator[Path]:
    """A file system on a block device."""
    path.mkdir()
    entry = Entry("mount", str(path))
    ledger.add(entry)
    try:
        servers.run(["mount", "-o", "noatime,discard", device, str(path)])
        yield path
        # Not the ledger's way, which lets go lazily: what follows needs everything to have been written.
        servers.run(["umount", str(path)])
    finally:
        ledger.undo(entry)
        path.rmdir()


def format_image(image: Path, size_mib: int, fs: str, work: Work) -> None:
    """Makes an image with an empty file system, on the flash itself."""
    with image.open("wb") as file:
        file.truncate(size_mib << 20)
    quiet = {"xfs": ["mkfs.xfs", "-q"], "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]}
    if fs not in quiet:
        raise Refused(f"file system {fs!r} is not known here: {', '.join(quiet)} are")
    with loop_device(image, work.ledger) as device:
        servers.run([*quiet[fs], device])


def copy_image(image: Path, to: Path) -> None:
    """Copies an image; holes stay holes."""
    servers.run(["cp", "--sparse=always", "--reflink=auto", str(image), str(to)])
    with to.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def mounted(backend: Backend, image: Path, work: Work, *, warm: bool = True) -> Iterator[Mounted]:
    """The file system of an image, served by a back end, until the block ends. The image must be the row's own.

    A cache reads the whole image first, if it is to be `warm`; one that is started again has what it has.
    """
    with ExitStack() as stack:
        served = stack.enter_context(SERVE[backend.store](backend, image, work))
        if warm and backend.store in CACHES:
            read_all(served.file, image)
            if backend.card:
                read_until_warm(served, image)
        device = stack.enter_context(loop_device(served.file, work.ledger))
        path = stack.enter_context(mount(device, work.folder / "mnt", work.ledger))
        yield Mounted(path, device, served.pids, served.cache)


@dataclass(frozen=True)
class Served:
    """A file that is a block device in all but name, and what serves it."""

    file: Path
    pids: Sequence[int] = ()
    cache: Callable[[], CacheCounts | None] = lambda: None


@contextmanager
def serve_raw(_backend: Backend, image: Path, _work: Work) -> Iterator[Served]:
    """The flash itself."""
    yield Served(image)


@contextmanager
def serve_past_cache(backend: Backend, image: Path, work: Work) -> Iterator[Served]:
    """The slow disk alone, or the flash, over the same export as Forebay's."""
    options = ["--mode", "passthrough", "--set", "cache_allocation=sparse", *backend.options]
    file, cache = work.folder / "export/disk", f"{work.folder}/disk.cache:{LEAST_CACHE}"
    device = SLOW if backend.store is Store.DISK else backend.card
    with daemon(image, cache, [f"fuse:{file}"], options, work, emulate=device) as running:
        yield Served(file, [running.pid])


@contextmanager
def serve_forebay(backend: Backend, image: Path, work: Work) -> Iterator[Served]:
    """Forebay in front of the slow disk."""
    cache = f"{work.folder}/forebay.cache:{backend.cache_mib}MiB"
    file = work.folder / "export/disk"
    options = [*(["--emulate-cache", backend.card] if backend.card else []), *backend.options]
    with daemon(image, cache, [f"fuse:{file}"], options, work) as running:
        yield Served(file, [running.pid], lambda: counts_of_forebay(work.folder))


@contextmanager
def serve_nbdkit(backend: Backend, image: Path, work: Work) -> Iterator[Served]:
    """nbdkit's cache filter in front of the slow disk."""
    disk, socket, file = work.folder / "disk.sock", work.folder / "nbdkit.sock", work.folder / "nbdfuse"
    below = ["--mode", "passthrough", "--set", "cache_allocation=sparse"]
    export = f"nbd+unix:///v?socket={disk}"
    command = ["nbdkit", "-f", "-U", str(socket), "-e", "v", "--filter=cache", "nbd", f"socket={disk}", "export=v"]
    # Its blocks are 64 KiB by default; with 4 KiB ones a FLUSH takes a turn of the disk for each dirty block.
    command += ["cache-on-read=true", *backend.options]
    file.touch()
    socket.unlink(missing_ok=True)  # Of one that was here before: it is what says that this one is ready.
    fuse = ["nbdfuse", "-C", "4", str(file), f"nbd+unix:///v?socket={socket}"]
    with (
        daemon(image, f"{work.folder}/disk.cache:{LEAST_CACHE}", [export], below, work) as slow,
        servers.server(
            command,
            work.folder / "nbdkit.log",
            work.ledger,
            lambda _: socket.exists(),
            env={"TMPDIR": str(work.folder)},
        ) as cache,
    ):
        work.ledger.add(Entry("mount", str(file)))
        with servers.server(
            fuse,
            work.folder / "nbdfuse.log",
            work.ledger,
            lambda _: size_of(file) > 0,
            end=lambda _: unmount(file),
        ) as mounter:
            yield Served(file, [slow.pid, cache.pid, mounter.pid])


@contextmanager
def serve_flashcache(backend: Backend, image: Path, work: Work) -> Iterator[Served]:
    """The FlashCache model in front of the slow disk."""
    statistics = work.folder / "flashcache.json"
    command = [
        str(binaries.path(Binary.MODEL)),
        "--backing",
        str(image),
        "--cache",
        f"{work.folder}/model.cache:{backend.cache_mib}MiB",
    ]
    command += ["--export", f"fuse:{work.folder}/export/disk", "--emulate", SLOW, "--stats", str(statistics)]
    command += ["--emulate-cache", backend.card] if backend.card else []
    file, log = work.folder / "export/disk", work.folder / "flashcache-model.log"
    note_mount(file, work.ledger)

    # Its orderly end cleans everything, in its own way: a few blocks at a time.
    with servers.server([*command, *backend.options], log, work.ledger, says_ready, patience_s=3600) as running:
        yield Served(file, [running.pid], lambda: counts_of_model(statistics))


SERVE = {
    Store.RAW: serve_raw,
    Store.PAST: serve_past_cache,
    Store.DISK: serve_past_cache,
    Store.FOREBAY: serve_forebay,
    Store.NBDKIT: serve_nbdkit,
    Store.FLASHCACHE: serve_flashcache,
}


@contextmanager
def daemon(
    image: Path,
    cache: str,
    exports: Sequence[str],
    options: Sequence[str],
    work: Work,
    *,
    emulate: str = SLOW,
    log: str = "forebay.log",
) -> Iterator[servers.Server]:
    """A `forebay run` in front of an image, as slow as a disk unless told otherwise; nothing: as fast as it is."""
    admin = work.folder / "forebay.admin"
    command = [str(harness.FOREBAY), "run", "--new-cache", "--backing", f"file:{image}", "--cache", cache]
    command += ["--admin", str(admin)]
    command += ["--emulate", emulate] if emulate else []
    for export in exports:
        command += ["--export", export]
        if export.startswith("fuse:"):
            note_mount(Path(export.removeprefix("fuse:")), work.ledger)
    with servers.server([*command, *options], work.folder / log, work.ledger, says_ready) as running:
        yield running


def unmount(file: Path) -> None:
    """Ends a FUSE server that serves one file, in the way that it calls orderly."""
    servers.run(["fusermount3", "-u", str(file)])


def note_mount(file: Path, ledger: Ledger) -> None:
    """A server that is killed leaves its FUSE mount behind: the folder of the file."""
    ledger.add(Entry("mount", str(file.parent)))


def says_ready(running: servers.Server) -> bool:
    """Whether it has said that clients can come."""
    return "ready: " in running.said()


def size_of(file: Path) -> int:
    """Size of a file, 0 where there is none yet."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def counts_of_forebay(folder: Path) -> CacheCounts:
    """The statistics of the only volume."""
    said = json.loads(servers.run([str(harness.FOREBAY), "stats", str(folder / "forebay.admin"), "--format", "json"]))
    return CacheCounts(
        dirty_mib=said["dirty_blocks"] * BLOCK_MIB,
        found_blocks=said["read_hit_blocks"],
        asked_blocks=said["read_hit_blocks"] + said["read_miss_blocks"],
        disk_read_mib=said["backing_read_bytes"] / MIB,
        disk_written_mib=said["backing_written_bytes"] / MIB,
        flash_written_mib=said["cache_written_bytes"] / MIB,
    )


def counts_of_model(statistics: Path) -> CacheCounts | None:
    """The FlashCache model's, which it writes each second: all of them count blocks."""
    if not statistics.exists():
        return None
    said = json.loads(statistics.read_text())
    return CacheCounts(
        dirty_mib=said["dirty_blocks"] * BLOCK_MIB,
        found_blocks=said["read_hits"],
        asked_blocks=said["reads"],
        disk_read_mib=said["disk_reads"] * BLOCK_MIB,
        disk_written_mib=said["disk_writes"] * BLOCK_MIB,
        flash_written_mib=said["ssd_writes"] * BLOCK_MIB,
    )


def card_amplification(folder: Path) -> float:
    """Pages that an emulated card wrote to its chips for each that it was given, as what served it said at its end.

    Raises `Refused` if nothing was said.
    """
    for log in folder.glob("*.log"):
        found = CARD_DID.search(log.read_text(errors="replace"))
        if found:
            written, moved = int(found["written"]), int(found["moved"])
            return (written + moved) / max(1, written)
    raise Refused(f"no server in {folder} has said what its card did")


def read_all(file: Path, image: Path) -> None:
    """Reads through a cache what the image has, in order: every cache begins with everything, and clean.

    Holes are left out; they are found in the image, because exports do not tell.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, CHUNK_BYTES)  # Direct I/O wants aligned memory.
    try:
        for first, last in written_parts(image):
            begin = first // CHUNK_BYTES * CHUNK_BYTES
            for offset in range(begin, last, CHUNK_BYTES):
                os.preadv(descriptor, [memory], offset)
    finally:
        os.close(descriptor)


def read_until_warm(served: Served, image: Path) -> None:
    """Reads what an image has again, until the cache finds nearly all of it, if it says so.

    On a card that is slower than the disk Forebay answers a read and gives up storing the block. The FlashCache model
    stores first.
    """
    for _ in range(PASSES_MAX):
        before = served.cache()
        read_all(served.file, image)
        time.sleep(COUNTED_S)
        after = served.cache()
        if before is None or after is None:
            return
        if after.found_blocks - before.found_blocks >= WARM * (after.asked_blocks - before.asked_blocks):
            return
    raise Refused(f"after {PASSES_MAX} more readings the cache still lacks more than {1 - WARM:.0%} of the image")


def written_parts(image: Path) -> Iterator[tuple[int, int]]:
    """Parts of a sparse file that were written, as first byte and the one after the last."""
    with image.open("rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        position = 0
        while position < size:
            try:
                first = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError:
                return
            position = os.lseek(descriptor, first, os.SEEK_HOLE)
            yield first, position


def finish(backend: Backend, image: Path, work: Work) -> None:
    """After the file system is gone: brings what only a cache has into the image, at the speed of the flash."""
    if backend.store is not Store.FOREBAY:
        return  # The model and nbdkit have written everything before they ended.
    cache, socket = f"{work.folder}/forebay.cache", work.folder / "after.sock"
    with daemon(image, cache, [f"nbd+unix:///disk?socket={socket}"], [], work, emulate="", log="after.log"):
        servers.run([str(harness.FOREBAY), "flush", "disk", "--admin", str(work.folder / "forebay.admin")])


def check_room(where: Path, mib: int) -> None:
    """Raises `Refused` if the flash has less room than a run needs."""
    free = shutil.disk_usage(where).free >> 20
    if free < mib:
        raise Refused(f"{where} has {free} MiB of room, {mib} MiB are needed: name another folder with --where")

"""Forebay and its peers: how each is started, on which file, and what it is called.

Every server is a child of the benchmark and is ended by its pid when its block ends. Files of caches and devices are
written once in full before anything is measured, so that no measurement pays for the file system's first allocation.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import harness as h
from comparison.model import Target
from fio_client import fio, nbd, raw

# Destage would compete with the foreground for the one disk: here the path through the cache is measured.
HOLD_DIRTY = ("dirty_low_pct=90", "dirty_high_pct=90", "idle_delay=off")
# Servers are paused between their runs (see `runner`), which must not count as idling.
NO_IDLING = ("idle_delay=off",)

# Of an NBD handshake: fixed newstyle without zeroes, and what the server says, its greeting and the export.
CLIENT_FLAGS, OPTION_MAGIC, OPTION_EXPORT_NAME = 3, 0x49484156454F5054, 1
GREETING_BYTES = 18 + 10


def written_file(path: Path, size: int) -> Path:
    """A file of which every block was written, with zeroes."""
    fio(raw(path), ["--rw=write", "--bs=1M", "--iodepth=4", "--zero_buffers", f"--size={size}", "--end_fsync=1"])
    return path


def sparse_file(path: Path, size: int) -> Path:
    """A file without blocks."""
    path.touch()
    os.truncate(path, size)
    return path


@dataclass
class Daemon:
    """A `forebay run`, which can be restarted with an empty cache."""

    folder: Path
    name: str
    cache_size: int
    volume_size: int
    settings: Sequence[str] = ()
    options: Sequence[str] = ()
    sparse_cache: bool = False
    child: subprocess.Popen[bytes] | None = None
    pids: list[int] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """Where clients connect to."""
        return self.folder / f"{self.name}.sock"

    @property
    def admin(self) -> Path:
        """Where `forebay stats` and `forebay flush` connect to."""
        return self.folder / f"{self.name}.admin"

    def command(self) -> list[str]:
        """The command line."""
        cache, disk = self.folder / f"{self.name}.cache", self.folder / f"{self.name}.disk"
        if not disk.exists():
            sparse_file(disk, self.volume_size)
        if not cache.exists() and not self.sparse_cache:
            written_file(cache, self.cache_size)
        command = [str(h.FOREBAY), "run", "--new-cache", "--overwrite", "--fill"]
        command += ["--backing", str(disk), "--cache", f"{cache}:{self.cache_size}"]
        command += ["--export", f"nbd+unix:///v?socket={self.socket}", "--admin", str(self.admin), *self.options]
        for setting in (*self.settings, *(("cache_allocation=sparse",) if self.sparse_cache else ())):
            command += ["--set", setting]
        return command

    def start(self) -> None:
        """Starts it and waits until it serves."""
        self.child, _ = h.start(self.command(), self.socket)
        self.pids[:] = [self.child.pid]

    def stop(self) -> None:
        """Stops it in an orderly way."""
        if self.child is not None:
            h.stop(self.child)
            self.pids.clear()

    def begin_anew(self) -> None:
        """Starts again with a cache that holds nothing. The backing store keeps its content."""
        self.stop()
        cache = self.folder / f"{self.name}.cache"
        written_file(cache, self.cache_size)
        self.start()

    def ask(self, *words: str) -> str:
        """What a command of the operator prints."""
        command = [str(h.FOREBAY), *words, "--admin", str(self.admin)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise h.Failure(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def counters(self) -> dict[str, int]:
        """The statistics of the volume."""
        found = json.loads(self.ask("stats", "--format", "json"))
        return {name: value for name, value in found.items() if isinstance(value, int)}

    def clean(self) -> None:
        """Writes back everything that is dirty."""
        self.ask("flush", "v")

    def target(self, name: str, *extra: str) -> Target:
        """As a target, with options of fio for this one alone."""
        return Target(name, nbd(self.socket), self.pids, extra, counters=self.counters)


@contextmanager
def daemon(
    folder: Path,
    name: str,
    *,
    cache: int,
    volume: int,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    sparse_cache: bool = False,
) -> Iterator[Daemon]:
    """A `forebay run` on files of its own; sizes in bytes."""
    server = Daemon(folder, name, cache, volume, settings, options, sparse_cache)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def idle_clients(path: Path, count: int) -> Iterator[None]:
    """So many clients that have chosen the export `v` of a unix socket and ask for nothing."""
    option = struct.pack(">IQII", CLIENT_FLAGS, OPTION_MAGIC, OPTION_EXPORT_NAME, 1) + b"v"
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(30)
            client.connect(str(path))
            client.sendall(option)
            received = 0
            while received < GREETING_BYTES:
                part = client.recv(GREETING_BYTES - received)
                if not part:
                    raise h.Failure(f"{path}: a client was turned away")
                received += len(part)
        yield


@contextmanager
def emulated_disk(folder: Path, name: str, volume: int) -> Iterator[Daemon]:
    """A 7200 rpm disk without a cache: Forebay in passthrough."""
    options = ("--mode", "passthrough", "--emulate", "hdd-7200")
    with daemon(folder, name, cache=64 * h.MIB, volume=volume, options=options, sparse_cache=True) as server:
        yield server


@contextmanager
def null_volume(folder: Path, size: int) -> Iterator[Target]:
    """Forebay's server with nothing behind it."""
    path = folder / "null.sock"
    uri = f"nbd+unix:///v?socket={path}"
    with h.process([str(h.NULL), "--export", uri, "--size", str(size)], path) as child:
        yield Target("null volume", nbd(path), [child.pid])


@functools.cache
def has_null_volume() -> bool:
    """Whether its program is there."""
    return h.NULL.exists()


@contextmanager
def nbdkit(folder: Path, name: str, *words: str) -> Iterator[Target]:
    """nbdkit with a plugin and its options. What its filters need temporarily goes to the folder."""
    path = folder / f"{name.replace(' ', '-')}.sock"
    command = ["env", f"TMPDIR={folder}", "nbdkit", "-f", "-U", str(path), "-e", "v", *words]
    with h.process(command, path) as child:
        yield Target(name, nbd(path), [child.pid])


@contextmanager
def nbdkit_file(folder: Path, size: int) -> Iterator[Target]:
    """nbdkit on a file, through the page cache."""
    disk = written_file(folder / "nbdkit-file.disk", size)
    with nbdkit(folder, "nbdkit file", "file", str(disk)) as target:
        yield target


@contextmanager
def nbdkit_cache(folder: Path, volume: int, cache: int) -> Iterator[Target]:
    """nbdkit's cache filter over an emulated disk of its own. Its cost includes that of the disk, as Forebay's does.

    Write-back where the data fits the cache. Where it does not, the limit has to be enforced, and then only
    write-through is right: when it reclaims, the filter drops blocks that were never written back (seen with nbdkit
    1.32: half of what was written read as zeroes; its manual does not say so).
    """
    limits = ["cache=writeback"] if volume <= cache else ["cache=writethrough", f"cache-max-size={cache}"]
    with emulated_disk(folder, "below-nbdkit", volume) as disk:
        words = ["--filter=cache", "nbd", f"socket={disk.socket}", "export=v"]
        # Its own default is 64 KiB, with which a cache of this size would hold a sixteenth of the hot blocks.
        words += [*limits, "cache-on-read=true", "cache-min-block-size=4096"]
        with nbdkit(folder, "nbdkit cache", *words) as target:
            target.pids += disk.pids
            # It writes through block by block, each a turn of the disk.
            target.below = nbd(disk.socket)
            yield target


@contextmanager
def qemu_nbd(folder: Path, mode: str, size: int) -> Iterator[Target]:
    """qemu-nbd on a raw file; `mode` is its --cache."""
    name = f"qemu-nbd {mode}"
    path, disk = folder / f"qemu-{mode}.sock", written_file(folder / f"qemu-{mode}.disk", size)
    command = ["qemu-nbd", "--persistent", "--shared=0", "--export-name=v", f"--socket={path}", "--format=raw"]
    command += [f"--cache={mode}", "--aio=io_uring", str(disk)]
    with h.process(command, path) as child:
        yield Target(name, nbd(path), [child.pid])

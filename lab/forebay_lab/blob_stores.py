"""Starting what blobs are loaded into, and what it takes of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import cassandra, java, kafka
from .blob_grid import Kind
from .experiment import Work

MAIN = {
    "files": ("common", "FileBlobs"),
    "kafka": ("kafka", "KafkaBlobs"),
    "cassandra": ("cassandra", "CassandraBlobs"),
}
# Unit of `st_blocks`, and of what a file system gives to files.
SECTOR_BYTES = 512
BLOCK_BYTES = 4096


@contextmanager
def loader(kind: Kind, data: Path, work: Work) -> Iterator[java.Program]:
    """The store, with everything it keeps below `data`, and the program that loads it, until the block ends."""
    java.build()
    with served(kind, data, work) as options:
        words = java.command(*MAIN[kind.store], options, ["-Xms512m", "-Xmx1024m"])
        with java.program(words, "loader", work) as program:
            yield program


@contextmanager
def served(kind: Kind, data: Path, work: Work) -> Iterator[dict[str, str | int]]:
    """The servers of a store, if it has any; gives what the loader must know."""
    if kind.store == "kafka":
        with kafka.brokers(kind.servers, data, work) as addresses:
            yield {"servers": addresses}
    elif kind.store == "cassandra":
        with cassandra.nodes(kind.servers, data, work, sync=kind.sync) as nodes:
            yield {"hosts": ",".join(nodes.hosts), "port": nodes.port, "jmx": ",".join(str(port) for port in nodes.jmx)}
    else:
        yield {"folder": str(data)}


def folders(kind: Kind, data: Path, name: str) -> list[Path]:
    """What a point called `name` has on the disk, of all servers."""
    pattern = {"files": name, "kafka": f"broker-*/{name}-*", "cassandra": f"node-*/data/{name}"}[kind.store]
    return sorted(data.glob(pattern))


def disk_bytes(paths: list[Path]) -> int:
    """Space that files take: holes take none, and what XFS has reserved behind their ends is not counted."""
    files = [file for path in paths for file in path.rglob("*") if file.is_file()]
    found = [file.stat() for file in files]
    return sum(min(one.st_blocks * SECTOR_BYTES, -(-one.st_size // BLOCK_BYTES) * BLOCK_BYTES) for one in found)


def forget(paths: list[Path]) -> None:
    """Lets the kernel forget what it has of files, which must have been written: who reads them now asks the disk."""
    for file in [file for path in paths for file in path.rglob("*") if file.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

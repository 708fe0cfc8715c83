"""Damages a copy of a cache, and applies what `forebay salvage --to` extracted."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from .superblock import BLOCK, COPIES


def ranges(listed: Path, states: Iterable[str] = ("dirty",)) -> Iterator[tuple[int, int]]:
    """Offset and length of what has one of these states in a file NAME.ranges of `forebay salvage`."""
    for line in listed.read_text().splitlines():
        if not line.startswith("#"):
            offset, count, state = line.split()
            if state in states:
                yield int(offset), int(count)


def apply(data: Path, listed: Path, image: Path, states: Iterable[str] = ("dirty",)) -> None:
    """Writes the ranges of these states onto an image."""
    with data.open("rb") as source, image.open("r+b") as to:
        for offset, count in ranges(listed, states):
            source.seek(offset)
            to.seek(offset)
            to.write(source.read(count))


def flip(cache: BinaryIO, offset: int) -> None:
    """Changes one bit."""
    cache.seek(offset)
    byte = cache.read(1)[0] ^ 1
    cache.seek(offset)
    cache.write(bytes([byte]))


def damage_superblocks(path: Path) -> None:
    """Both copies."""
    with path.open("r+b") as cache:
        for offset in COPIES:
            cache.seek(offset)
            cache.write(b"\xff" * 512)


def damage_checkpoint(path: Path, generation: int, slot_blocks: int) -> None:
    """Both copies of one checkpoint; `slot_blocks` is the length of a slot."""
    with path.open("r+b") as cache:
        for copy in (0, 1):
            flip(cache, (32 + (generation % 2 * 2 + copy) * slot_blocks) * BLOCK + 4096 + 9)


def damage_dirty_sector(path: Path, dirty: Path, listed: Path) -> int:
    """One bit of the first dirty range that was extracted, wherever the cache has it; its offset in the volume."""
    offset, _ = next(ranges(listed))
    with dirty.open("rb") as file:
        file.seek(offset)
        wanted = file.read(512)
    # It may lie there more than once: blocks are copied when they are merged or moved. No other sector is the same.
    with path.open("r+b") as cache:
        whole = cache.read()
        at = whole.find(wanted)
        assert at > 0, "the dirty sector is not in the cache"
        while at > 0:
            flip(cache, at)
            at = whole.find(wanted, at + 1)
    return offset

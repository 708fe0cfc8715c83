"""Traces as files: records of 24 bytes, little endian: the format `bin` of `forebay trace convert`.

u64 nanoseconds (not used), u64 first block of 4 KiB, u32 blocks (0 counts as 1), u32 write (0 or 1).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RECORD = struct.Struct("<QQII")
BLOCK = 4096
BLOCKS_MAX = (32 << 20) // BLOCK
END_MAX = 1 << 40


class BadTrace(ValueError):
    """A file is no trace, or has a request that no volume takes."""


@dataclass(frozen=True, slots=True)
class Request:
    """Some blocks, read or written."""

    first: int
    blocks: int
    writes: bool


def unpacked(file: Path, folder: Path) -> Path:
    """The trace itself, unpacked into the folder if it is packed."""
    if not file.is_file():
        raise BadTrace(f"{file} is no file: give a trace of 24-byte records, packed with zstd or not")
    if file.suffix != ".zst":
        return file
    if shutil.which("zstd") is None:
        raise BadTrace(f"{file} is packed, and there is no zstd: install the package zstd, or unpack it")
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / file.stem
    done = subprocess.run(
        ["zstd", "--decompress", "--quiet", "--force", "-o", plain, file], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BadTrace(f"{file} cannot be unpacked: {done.stderr.strip()}")
    return plain


def read(file: Path) -> list[Request]:
    """All requests of a trace."""
    data = file.read_bytes()
    if not data or len(data) % RECORD.size:
        raise BadTrace(f"{file}: {len(data)} bytes are no records of {RECORD.size} bytes")
    requests = []
    for at, (_, first, count, writes) in enumerate(RECORD.iter_unpack(data)):
        blocks = max(count, 1)
        if blocks > BLOCKS_MAX or first >= END_MAX - blocks:
            raise BadTrace(
                f"{file}: record {at}: {blocks} blocks from {first} on; a request has at most {BLOCKS_MAX} blocks, "
                f"and ends below block {END_MAX}"
            )
        requests.append(Request(first, blocks, writes != 0))
    return requests


def accesses(requests: list[Request]) -> Iterator[tuple[int, bool]]:
    """Each block of each request, and whether it is written."""
    for request in requests:
        for block in range(request.first, request.first + request.blocks):
            yield block, request.writes


def runs(requests: list[Request]) -> list[tuple[int, int]]:
    """The blocks that a trace uses, as runs: the first block, and how many follow one another."""
    found: list[tuple[int, int]] = []
    for block in sorted({block for block, _ in accesses(requests)}):
        if found and sum(found[-1]) == block:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((block, 1))
    return found

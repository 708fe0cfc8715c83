"""What blocks hold during a replay: each says which block it is, and how often it was written.

So a block from another place, an older one, a mixture of two and zeroes are all told from the right one.
"""

from __future__ import annotations

import struct

from tracing.records import BLOCK

STAMP = struct.Struct("<QQ")


def block(number: int, version: int) -> bytes:
    """The bytes of a block."""
    return STAMP.pack(number, version) * (BLOCK // STAMP.size)


def describe(found: bytes) -> str:
    """What a wrong block is, in words."""
    number, version = STAMP.unpack_from(found)
    if found == block(number, version):
        return f"version {version} of block {number}" if any(found) else "zeroes, or version 0 of block 0"
    return f"no block as a whole; it begins with {found[: STAMP.size].hex()}"


class Versions:
    """How often each block was written."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def write(self, first: int, blocks: int) -> bytes:
        """What the next write of these blocks brings."""
        numbers = range(first, first + blocks)
        for number in numbers:
            self._of[number] = self._of.get(number, 0) + 1
        return self.of(numbers)

    def of(self, numbers: range) -> bytes:
        """What these blocks must hold now."""
        return b"".join(block(number, self._of.get(number, 0)) for number in numbers)

    def check(self, first: int, found: bytes) -> str | None:
        """What is wrong with blocks that were read, or `None`."""
        numbers = range(first, first + len(found) // BLOCK)
        if found == self.of(numbers):
            return None
        for at, number in enumerate(numbers):
            piece = found[at * BLOCK : (at + 1) * BLOCK]
            version = self._of.get(number, 0)
            if piece != block(number, version):
                return f"block {number} is not version {version} of it, but {describe(piece)}"
        return None

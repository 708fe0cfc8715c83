"""What the server promised until a cut, and whether a volume keeps it. From the journal of `writer.py`.

Of each sector the last stamp that a fence covers must be there, or a later one that was asked for: a loss of power may
keep more than was promised. Anything else is wrong: an older stamp, one of another sector, half of one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from writer import SECTOR, content

ZEROES = bytes(SECTOR)
SHOWN = 5


@dataclass(frozen=True)
class Request:
    """A write of the journal."""

    first: int
    sectors: int
    is_zeroes: bool


class Promises:
    """The journal so far. `until` goes on to a fence, and is asked for in order."""

    def __init__(self, journal: Path, sectors: int) -> None:
        lines = journal.read_text().splitlines()
        self.requests: dict[int, Request] = {}
        self.asked: list[list[int]] = [[] for _ in range(sectors)]
        """Of each sector the stamps that it was ever written with, in order."""
        for line in lines:
            kind, *numbers = line.split()
            if kind in "wz":
                stamp, first, count = map(int, numbers)
                self.requests[stamp] = Request(first, count, kind == "z")
                for sector in range(first, first + count):
                    self.asked[sector].append(stamp)
        self.lines = iter(lines)
        self.promised = [0] * sectors
        """Of each sector the stamp that must be there at least; 0: what was there at first."""
        self.answered: list[int] = []
        self.covered: dict[int, list[int]] = {}
        self.fence = 0

    def until(self, fence: int) -> None:
        """Everything up to this fence was promised before the cut."""
        while self.fence < fence:
            kind, *numbers = next(self.lines).split()
            if kind == "a":
                self.answered.append(int(numbers[0]))
            elif kind == "f":
                self.covered[int(numbers[0])], self.answered = self.answered, []
            elif kind == "F":
                self.fence = int(numbers[0])
                self._promise(self.covered.pop(self.fence))
            elif kind == "U":
                self.fence = int(numbers[0])
                self._promise([int(numbers[1])])

    def _promise(self, stamps: list[int]) -> None:
        for stamp in stamps:
            request = self.requests[stamp]
            for sector in range(request.first, request.first + request.sectors):
                self.promised[sector] = max(self.promised[sector], stamp)

    def broken(self, volume: bytes) -> Iterator[str]:
        """Each sector that does not keep its promise, in words."""
        for sector, least in enumerate(self.promised):
            found = volume[sector * SECTOR : (sector + 1) * SECTOR]
            if found == ZEROES:
                zeroes = [stamp for stamp in self.asked[sector] if self.requests[stamp].is_zeroes]
                if least == 0 or (zeroes and zeroes[-1] >= least):
                    continue
                what = "zeroes"
            else:
                stamp, place = struct.unpack("<QQ", found[:16])
                known = self.requests.get(stamp)
                right = known is not None and place == sector and not known.is_zeroes
                if right and stamp >= least and stamp in self.asked[sector] and found == content(stamp, sector):
                    continue
                what = f"stamp {stamp} of sector {place}" + ("" if found == content(stamp, place) else ", torn")
            yield f"sector {sector}: stamp {least} or a later one was promised, {what} is there"

"""What a log of dm-log-writes says about a loss of power, and the devices as they could be after it.

The log is a superblock and entries, each a header of one sector with its data behind it (struct log_write_super and
log_write_entry in the kernel's drivers/md/dm-log-writes.c). A write is logged once it is complete and a flush that was
issued after that is complete as well, before the entry of that flush; a write with FUA when it is complete.

The devices of the daemon are parts of the logged one. Which of them a write is for is told by its sector, and which a
flush is for by the kernel's events, in the same order (`flushes`). So each device has a volatile cache of its own
here: after a cut, a device certainly has what is logged before its own last flush, and its writes with FUA. Of its
other writes it has any part: how they are chosen is the *fate* of a cut.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8

FENCE = "fence-"
CONFIG, ROUND = "config-", "round-"
SWITCH_MARKS = 8
FATES = ("none", "all", "some", "torn", "newest")


@dataclass(frozen=True)
class Entry:
    """One line of the log."""

    sector: int
    sectors: int
    flags: int
    at: int
    """Where its data lies in the log."""
    mark: str = ""
    part: int = 0
    """The device that it is for."""


@dataclass(frozen=True)
class Part:
    """A device of the daemon, as a part of the logged one."""

    name: str
    sectors: int


@dataclass(frozen=True)
class Cut:
    """Power is lost when so many entries were logged."""

    number: int
    entries: int
    fate: str
    seed: int


def flushes_of(events: Path, parts: Sequence[Part]) -> Iterator[int]:
    """Of each flush that was completed, in order: the device that it was for."""
    names = [part.name for part in parts]
    numbers: dict[str, int] = {}
    for line in events.read_text().splitlines():
        words = line.split()
        if len(words) == 2:
            numbers[words[1]] = names.index(words[0])
            continue
        device = words[words.index("block_bio_complete:") + 1]
        if device in numbers:
            yield numbers[device]


def part_at(parts: Sequence[Part], sector: int) -> int:
    """The device that has this sector."""
    for number, part in enumerate(parts):
        if sector < part.sectors:
            return number
        sector -= part.sectors
    raise SystemExit(f"a write behind the last device, at its sector {sector}")


def entries_of(log: Path, events: Path, parts: Sequence[Part]) -> list[Entry]:
    """All entries of a log."""
    found = []
    flushes = list(flushes_of(events, parts))
    told = iter(flushes)
    with log.open("rb") as file:
        magic, version, count, sector_bytes = struct.unpack("<QQQI", file.read(28))
        if (magic, version, sector_bytes) != (MAGIC, 1, SECTOR):
            raise SystemExit(f"{log} is no log of dm-log-writes with sectors of {SECTOR} bytes")
        at = SECTOR
        for _ in range(count):
            file.seek(at)
            header = file.read(SECTOR)
            sector, sectors, flags, data_bytes = struct.unpack("<QQQQ", header[:32])
            mark = header[32 : 32 + data_bytes].rstrip(b"\0").decode() if flags & MARK else ""
            part = 0 if flags & MARK else next(told, 0) if flags & FLUSH else part_at(parts, sector)
            found.append(Entry(sector, sectors, flags, at + SECTOR, mark, part))
            at += SECTOR + (0 if flags & DISCARD else sectors * SECTOR)
    logged = sum(bool(entry.flags & FLUSH) for entry in found)
    if logged != len(flushes):
        raise SystemExit(f"{logged} flushes are in {log} and {len(flushes)} in {events}: they cannot be told apart")
    return found


def choose(entries: Sequence[Entry], count: int, seed: int) -> list[Cut]:
    """Cuts all over the log, in order of place: at fences and flushes, where promises begin, and anywhere between. If
    devices were replaced meanwhile, two of three are in the middle of that, half of them where the new one is named."""
    chance = random.Random(seed)
    promises = [at + 1 for at, entry in enumerate(entries) if entry.flags & FLUSH or entry.mark.startswith(FENCE)]
    reads = [(at + 1, entry.mark) for at, entry in enumerate(entries) if entry.mark.startswith(CONFIG)]
    switches = [number for number in range(1, len(reads)) if reads[number][1] != reads[number - 1][1]]
    places = []
    for number in range(count):
        first, last = 0, len(entries)
        if reads and number % 3:
            # Between two marks in a row. They are close together only while a device is replaced.
            at = chance.randrange(len(reads))
            if switches and number % 3 == 1:
                # Where the new one becomes whole, and is named then.
                at = max(0, chance.choice(switches) - chance.randrange(SWITCH_MARKS))
            first, last = reads[at][0], reads[min(at + 1, len(reads) - 1)][0]
        near = [place for place in promises if first <= place <= last] if number % 2 else []
        places.append(chance.choice(near) if near else chance.randint(first, last))
    fates = [FATES[number % len(FATES)] for number in range(count)]
    chosen = sorted(zip(places, fates, strict=True))
    return [Cut(number, place, fate, seed * 1_000_003 + number) for number, (place, fate) in enumerate(chosen, 1)]


class Configuration:
    """Which cache device the configuration names at a cut, from the marks of `replacer.py`: `round-DEVICE` when that
    one is about to be replaced, and `config-DEVICE` when it was read."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.marks = [(at, entry.mark) for at, entry in enumerate(entries) if entry.mark.startswith((CONFIG, ROUND))]

    def named_at(self, cut: Cut) -> tuple[str, bool]:
        """The device, and whether that is sure. If it is not, it may be the one before, too.

        What was read is marked afterwards. So at a cut it is what the last mark before it says, if the second one
        behind it says the same: that was read after the first one behind it was made.
        """
        reads = [(at, mark.removeprefix(CONFIG)) for at, mark in self.marks if mark.startswith(CONFIG)]
        now = next((name for at, name in reversed(reads) if at < cut.entries), reads[0][1])
        behind = [name for at, name in reads if at >= cut.entries][:2]
        later = next((name for name in behind if name != now), now)
        return later, later == now

    def replaced_at(self, cut: Cut) -> str:
        """The device that was replaced last before a cut, or is being replaced."""
        rounds = [mark.removeprefix(ROUND) for at, mark in self.marks if mark.startswith(ROUND) and at < cut.entries]
        return rounds[-1] if rounds else ""


class Devices:
    """All devices, side by side, as a cut leaves them. Cuts are asked for in order of place."""

    def __init__(self, log: Path, entries: Sequence[Entry], parts: Sequence[Part], liar: str = "") -> None:
        self.log = log.open("rb")
        self.entries = entries
        self.lies = [part.name == liar for part in parts]
        """Of each device: its flushes and FUA do nothing, to see that this is found."""
        self.durable = bytearray(sum(part.sectors for part in parts) * SECTOR)
        self.volatile: list[list[Entry]] = [[] for _ in parts]
        """By device: what is logged and not certain to be there."""
        self.at = 0

    def after(self, cut: Cut) -> memoryview:
        """All devices after a cut."""
        for entry in self.entries[self.at : cut.entries]:
            self._log(entry)
        self.at = cut.entries
        image = bytearray(self.durable)
        chance = random.Random(cut.seed)
        for entries in self.volatile:
            for entry, sectors in survivors(entries, cut.fate, chance):
                self._apply(image, entry, sectors)
        return memoryview(image)

    def _log(self, entry: Entry) -> None:
        if entry.flags & MARK:
            return
        mine, lies = self.volatile[entry.part], self.lies[entry.part]
        if entry.flags & FLUSH and not lies:
            for each in mine:
                self._apply(self.durable, each, range(each.sectors))
            mine.clear()
        if not entry.sectors:
            return
        if entry.flags & FUA and not lies:
            # Older writes to the same place are not to come over it.
            mine[:] = [each for each in mine if not covers(entry, each)]
            self._apply(self.durable, entry, range(entry.sectors))
        else:
            mine.append(entry)

    def _apply(self, image: bytearray, entry: Entry, sectors: Sequence[int]) -> None:
        for first, count in runs(sectors):
            to = (entry.sector + first) * SECTOR
            if entry.flags & DISCARD:
                image[to : to + count * SECTOR] = bytes(count * SECTOR)
            else:
                self.log.seek(entry.at + first * SECTOR)
                image[to : to + count * SECTOR] = self.log.read(count * SECTOR)


def covers(entry: Entry, other: Entry) -> bool:
    """All sectors of the other are the entry's as well."""
    return entry.sector <= other.sector and other.sector + other.sectors <= entry.sector + entry.sectors


def survivors(entries: Sequence[Entry], fate: str, chance: random.Random) -> Iterator[tuple[Entry, Sequence[int]]]:
    """What of writes that are not certain is there, in order, and which of its sectors."""
    for number, entry in enumerate(entries):
        whole = range(entry.sectors)
        if fate == "torn":
            yield entry, [sector for sector in whole if chance.random() < 0.5]
            continue
        is_new, is_lucky = number >= len(entries) // 2, chance.random() < 0.5
        if {"none": False, "all": True, "newest": is_new, "some": is_lucky}[fate]:
            yield entry, whole


def runs(sectors: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbours as (first, count)."""
    first = previous = None
    for sector in sectors:
        if first is None or previous is None:
            first = sector
        elif sector != previous + 1:
            yield first, previous + 1 - first
            first = sector
        previous = sector
    if first is not None and previous is not None:
        yield first, previous + 1 - first

"""The rules of what a loss of power may leave, on logs and journals made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from cuts import (
    DISCARD,
    FATES,
    FLUSH,
    FUA,
    MAGIC,
    MARK,
    SECTOR,
    Configuration,
    Cut,
    Devices,
    Entry,
    Part,
    choose,
    entries_of,
)
from promises import Promises
from writer import content

CACHE = 8
WHOLE = 16
PARTS = [Part("cache", CACHE), Part("new", 4), Part("backing", 4)]


def logged(path: Path, lines: list[tuple[int, int, int, bytes]], flushed: list[str]) -> list[Entry]:
    """A log with these (sector, sectors, flags, data), and the events of its flushes."""
    log, events = path / "log", path / "flushes"
    parts = [struct.pack("<QQQI", MAGIC, 1, len(lines), SECTOR).ljust(SECTOR, b"\0")]
    for sector, sectors, flags, data in lines:
        inline = data if flags & MARK else b""
        parts.append((struct.pack("<QQQQ", sector, sectors, flags, len(inline)) + inline).ljust(SECTOR, b"\0"))
        parts.append(b"" if flags & (MARK | DISCARD) else data.ljust(sectors * SECTOR, b"\0"))
    log.write_bytes(b"".join(parts))
    numbers = {"cache": "253,1", "new": "253,3", "backing": "253,2"}
    told = [f"{name} {number}" for name, number in numbers.items()]
    for name in flushed:
        told += [f"x [000] 1.0: block_bio_complete: {number} FWS 0 + 0 [0]" for number in ("253,0", numbers[name])]
    events.write_text("\n".join(told))
    return entries_of(log, events, PARTS)


def write(sector: int, byte: bytes, flags: int = 0, sectors: int = 1) -> tuple[int, int, int, bytes]:
    return sector, sectors, flags, byte * (sectors * SECTOR)


def first_bytes(path: Path, entries: list[Entry], fate: str, seed: int = 1, liar: str = "") -> list[bytes]:
    """The first byte of each sector after a cut at the end of the log."""
    image = Devices(path / "log", entries, PARTS, liar).after(Cut(1, len(entries), fate, seed))
    return [bytes(image[sector * SECTOR : sector * SECTOR + 1]) for sector in range(WHOLE)]


FLUSHED: tuple[int, int, int, bytes] = (0, 0, FLUSH, b"")


def test_a_flush_makes_durable_what_its_own_device_has(tmp_path: Path) -> None:
    lines = [write(0, b"a"), write(CACHE, b"b"), FLUSHED, write(1, b"c")]
    entries = logged(tmp_path, lines, ["cache"])
    found = first_bytes(tmp_path, entries, "none")
    assert (found[0], found[CACHE], found[1]) == (b"a", b"\0", b"\0")
    assert first_bytes(tmp_path, entries, "all")[: CACHE + 1].count(b"\0") == CACHE - 2
    assert first_bytes(tmp_path, entries, "none", liar="cache")[0] == b"\0"
    entries = logged(tmp_path, lines, ["new"])
    found = first_bytes(tmp_path, entries, "none")
    assert (found[0], found[CACHE]) == (b"\0", b"b")
    lines = [write(CACHE + 3, b"n"), write(CACHE + 4, b"b"), FLUSHED]
    entries = logged(tmp_path, lines, ["backing"])
    assert first_bytes(tmp_path, entries, "none")[CACHE + 3 : CACHE + 5] == [b"\0", b"b"]


def test_fua_stays_and_nothing_older_comes_over_it(tmp_path: Path) -> None:
    entries = logged(tmp_path, [write(0, b"a"), write(0, b"b", FUA), write(1, b"c")], [])
    for fate in FATES:
        for seed in range(8):
            assert first_bytes(tmp_path, entries, fate, seed)[0] == b"b"


def test_volatile_writes_are_there_gone_or_torn(tmp_path: Path) -> None:
    entries = logged(tmp_path, [write(0, b"a", sectors=4), write(4, b"b", sectors=4)], [])
    torn = {tuple(first_bytes(tmp_path, entries, "torn", seed)[:8]) for seed in range(40)}
    assert len(torn) > 20
    some = {tuple(first_bytes(tmp_path, entries, "some", seed)[:8]) for seed in range(40)}
    whole = ((b"a",) * 4, (b"\0",) * 4), ((b"b",) * 4, (b"\0",) * 4)
    assert some == {first + second for first in whole[0] for second in whole[1]}
    assert first_bytes(tmp_path, entries, "newest")[:8] == [b"\0"] * 4 + [b"b"] * 4


def test_discards_read_as_zeroes_and_have_no_data_in_the_log(tmp_path: Path) -> None:
    entries = logged(tmp_path, [write(0, b"a"), FLUSHED, (0, 2, DISCARD, b""), write(3, b"d"), FLUSHED], ["cache"] * 2)
    assert first_bytes(tmp_path, entries, "none")[:4] == [b"\0", b"\0", b"\0", b"d"]


def test_flushes_that_the_events_do_not_tell_apart_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot be told apart"):
        logged(tmp_path, [write(0, b"a"), FLUSHED], [])


def test_cuts_are_in_order_and_many_are_where_a_promise_begins(tmp_path: Path) -> None:
    lines = [line for _ in range(50) for line in (write(0, b"a"), write(1, b"a"), FLUSHED, (0, 0, MARK, b"fence-1\0"))]
    entries = logged(tmp_path, lines, ["cache"] * 50)
    assert {entry.mark for entry in entries} == {"", "fence-1"}
    cuts = choose(entries, 100, seed=3)
    assert [cut.entries for cut in cuts] == sorted(cut.entries for cut in cuts)
    assert {cut.fate for cut in cuts} == set(FATES)
    assert sum(bool(cut.entries and entries[cut.entries - 1].flags & (FLUSH | MARK)) for cut in cuts) >= 50


def mark(text: str) -> tuple[int, int, int, bytes]:
    return 0, 0, MARK, text.encode() + b"\0"


def test_what_the_configuration_names_is_sure_but_for_where_it_changes(tmp_path: Path) -> None:
    read = [mark(f"config-{name}") for name in ("cache", "cache", "cache", "new", "new")]
    entries = logged(tmp_path, [mark("round-cache"), *read, mark("round-new"), mark("config-new")], [])
    configuration = Configuration(entries)
    at = [configuration.named_at(Cut(1, place, "none", 1)) for place in range(len(entries) + 1)]
    # Between the second and the fourth reading it may have changed already, or not yet.
    assert at == [("cache", True)] * 3 + [("new", False)] * 2 + [("new", True)] * 4
    assert [configuration.replaced_at(Cut(1, place, "none", 1)) for place in (0, 1, 6, 7)] == [
        "",
        "cache",
        "cache",
        "new",
    ]


def test_two_of_three_cuts_are_where_a_device_is_replaced(tmp_path: Path) -> None:
    quiet = [write(0, b"a")] * 300
    entries = logged(tmp_path, [*quiet, mark("config-cache"), write(1, b"a"), mark("config-new"), *quiet], [])
    places = [cut.entries for cut in choose(entries, 90, seed=3)]
    assert 60 <= sum(301 <= place <= 303 for place in places) < 90


JOURNAL = "w 1 0 2\na 1\nf 1\nw 2 0 1\na 2\nF 1\nz 3 1 1\na 3\nw 4 2 1\na 4\nU 2 4\n"


@pytest.mark.parametrize(
    ("fence", "stamps", "broken"),
    [
        (0, (0, 0, 0), []),
        (0, (2, 1, 4), []),
        (1, (1, 1, 0), []),
        (1, (2, 0, 0), []),  # later ones than promised: the second sector was zeroed
        (1, (0, 1, 0), [0]),
        (2, (1, 1, 4), []),  # a write with FUA promises nothing of others
        (2, (1, 1, 0), [2]),
    ],
)
def test_a_volume_has_what_fences_cover_or_later(
    tmp_path: Path, fence: int, stamps: tuple[int, ...], broken: list[int]
) -> None:
    (tmp_path / "journal").write_text(JOURNAL)
    promises = Promises(tmp_path / "journal", 3)
    promises.until(fence)
    volume = b"".join(content(stamp, sector) if stamp else bytes(SECTOR) for sector, stamp in enumerate(stamps))
    assert [int(line.split()[1].rstrip(":")) for line in promises.broken(volume)] == broken


@pytest.mark.parametrize(
    "wrong", [content(1, 1), content(9, 0), content(4, 0), content(1, 0)[:256] + content(2, 0)[256:]]
)
def test_other_content_is_never_right(tmp_path: Path, wrong: bytes) -> None:
    (tmp_path / "journal").write_text(JOURNAL)
    promises = Promises(tmp_path / "journal", 3)
    assert list(promises.broken(wrong + bytes(2 * SECTOR)))

"""What ought to be reached, and whether it was.

A goal that cannot be judged, because its group was not run, is left out. A missed goal is a figure, not a failure:
only `--enforce` makes an exit code of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from comparison.figures import Spread, number, paired_ratio
from comparison.model import CROWDED, FOREBAY, RAW, Results, Sample
from fio_client import Side

NULL = "null volume"
READ = "random read 4k"
WRITE = "random write 4k"
# Highest to lowest of the rounds of a base.
UNSTEADY = 1.5


@dataclass(frozen=True)
class Verdict:
    """A goal and what was reached. `note` says what to know before it is believed."""

    what: str
    goal: str
    reached: str
    passed: bool
    note: str = ""


def verdicts(results: Results) -> list[Verdict]:
    """All goals that can be judged."""
    rules: Sequence[Callable[[Results], Iterator[Verdict]]] = (
        hits,
        added_latency,
        writes,
        reclaiming,
        null_volume,
        flush,
        mix,
        amplification,
        full_load,
        crowd,
        stalls,
        idle,
    )
    return [verdict for rule in rules for verdict in rule(results)]


def values(samples: Sequence[Sample]) -> list[float]:
    """Their figures, by round."""
    return [sample.value for sample in samples]


def disturbed(*runs: Sequence[Sample]) -> str:
    """How many of these runs others disturbed."""
    samples = [sample for each in runs for sample in each]
    count = sum(sample.disturbed for sample in samples)
    return f"{count} of {len(samples)} runs disturbed" if count else ""


def unsteady(base: Sequence[Sample]) -> str:
    """Says so if what others are compared to was itself not the same from round to round: no ratio means much then."""
    found = Spread.of(values(base))
    if found.low and found.high / found.low <= UNSTEADY:
        return ""
    return f"{base[0].target} itself varied by {number(found.high / found.low) if found.low else 'everything'}"


def remarks(ours: Sequence[Sample], base: Sequence[Sample]) -> str:
    """What to know before a ratio is believed."""
    return "; ".join(filter(None, [disturbed(ours, base), unsteady(base)]))


def at_least(results: Results, group: str, case: str, pair: tuple[str, str], factor: float) -> Iterator[Verdict]:
    """The first target of the pair reaches `factor` times what the second does, by the median of ratios of rounds."""
    ours, theirs = (results.of(group, case, name) for name in pair)
    found = paired_ratio(values(ours), values(theirs))
    if found is not None:
        what = f"{case}: {pair[0]} / {pair[1]}"
        reached = f"{number(found.median)} ({number(found.low)} to {number(found.high)})"
        note = remarks(ours, theirs)
        yield Verdict(what, f">= {factor}", reached, found.median >= factor, note)


def hits(results: Results) -> Iterator[Verdict]:
    """Random reads of cached data at depth 32, against the raw device or the null volume, whichever is lower."""
    for connections in (1, 4):
        case = f"{READ}, depth 32 x {connections}"
        against = {name: results.spread("hits", case, name) for name in (RAW, NULL)}
        known = {name: spread.median for name, spread in against.items() if spread is not None}
        if known:
            lower = min(known, key=lambda name: known[name])
            for verdict in at_least(results, "hits", case, (FOREBAY, lower), 0.95):
                note = verdict.note if NULL in known else "; ".join(filter(None, [verdict.note, "no null volume"]))
                yield Verdict(verdict.what, verdict.goal, verdict.reached, verdict.passed, note)


def added_latency(results: Results) -> Iterator[Verdict]:
    """What the cache and its protocol add to a single read."""
    case = f"{READ}, depth 1 x 1"
    ours, theirs = results.of("hits", case, FOREBAY), results.of("hits", case, RAW)
    if ours and theirs:
        added = median(ours, lambda side: side.p50_us) - median(theirs, lambda side: side.p50_us)
        what = f"{case}: p50 over raw"
        yield Verdict(what, "<= 25 us", f"{added:.0f} us", added <= 25, disturbed(ours, theirs))


def median(samples: Sequence[Sample], of: Callable[[Side], float]) -> float:
    """Median over rounds of a figure of the main direction."""
    return statistics.median(of(sample.result.main) for sample in samples if sample.result is not None)


def writes(results: Results) -> Iterator[Verdict]:
    """Random writes against the raw device."""
    for connections, factor in ((1, 1.3), (4, 1.7)):
        yield from at_least(results, "writes", f"{WRITE}, depth 32 x {connections}", (FOREBAY, RAW), factor)


def reclaiming(results: Results) -> Iterator[Verdict]:
    """Random writes into a cache without free space."""
    yield from at_least(results, "states", f"{WRITE}, depth 32 x 1", ("full", RAW), 1.0)


def null_volume(results: Results) -> Iterator[Verdict]:
    """The export path alone."""
    yield from at_least(results, "null", f"{READ}, depth 32 x 4", (NULL, "nbdkit memory"), 2.0)


def flush(results: Results) -> Iterator[Verdict]:
    """Time of a write with its FLUSH: one after the other, so the inverse of what was done in a second."""
    case = "write 4k + flush, depth 1 x 1"
    ours, theirs = results.of("flush", case, FOREBAY), results.of("flush", case, RAW)
    found = paired_ratio(values(theirs), values(ours))
    if found is not None:
        what = "write + FLUSH, depth 1: time / raw write + fdatasync"
        reached = f"{number(found.median)} ({number(found.low)} to {number(found.high)})"
        yield Verdict(what, "<= 1.3", reached, found.median <= 1.3, remarks(ours, theirs))


def mix(results: Results) -> Iterator[Verdict]:
    """What a cache is for."""
    case = "mix 70/30, 4 x cache, depth 32 x 1"
    for peer in ("no cache", "nbdkit cache"):
        yield from at_least(results, "mix", case, (FOREBAY, peer), 3.0)


def amplification(results: Results) -> Iterator[Verdict]:
    """Worst of all rounds."""
    for case in results.cases("amplification"):
        found = [s.amplification for s in results.of("amplification", case, FOREBAY) if s.amplification is not None]
        limit = 1.15 if case.startswith("uniform") else 1.3 if "100 % full" in case else None
        if found and limit is not None:
            yield Verdict(f"write amplification, {case}", f"<= {limit}", f"{max(found):.3f}", max(found) <= limit)


def full_load(results: Results) -> Iterator[Verdict]:
    """Median latency with three more connections beside, against alone, at the same depth of each."""
    for case in results.cases("latency"):
        if not case.endswith(" x 1"):
            continue
        alone = results.of("latency", case, FOREBAY)
        loaded = results.of("latency", case.removesuffix("1") + "4", FOREBAY)
        if alone and loaded:
            lone, busy = (median(samples, lambda side: side.p50_us) for samples in (alone, loaded))
            times = busy / lone
            what = f"{case.removesuffix(' x 1')}: p50 of 4 connections / of 1"
            reached = f"{number(times)} ({busy:.0f} / {lone:.0f} us)"
            yield Verdict(what, "<= 3", reached, times <= 3, disturbed(alone, loaded))


def crowd(results: Results) -> Iterator[Verdict]:
    """A busy connection beside many idle ones, against the same alone."""
    for case in results.cases("crowd"):
        yield from at_least(results, "crowd", case, (CROWDED, FOREBAY), 0.95)


def stalls(results: Results) -> Iterator[Verdict]:
    """The longest request of all on the flash path, with that of the raw device beside it: machines stall too."""
    ours = [s for s in results.samples if s.flash and s.result is not None and s.target not in PEERS]
    raw = [s.result.longest_us for s in results.samples if s.flash and s.result is not None and s.target == RAW]
    if ours:
        worst = max(ours, key=longest_us)
        note = f"{worst.group}: {worst.case}, {worst.target}" + (f"; raw: {max(raw) / 1e3:.0f} ms" if raw else "")
        if worst.disturbed:
            note += "; disturbed"
        took = longest_us(worst)
        yield Verdict("longest stall, flash path", "<= 100 ms", f"{took / 1e3:.0f} ms", took <= 100e3, note)


PEERS = frozenset({RAW, NULL, "nbdkit file", "nbdkit memory", "nbdkit cache", "qemu-nbd writeback", "qemu-nbd none"})


def longest_us(sample: Sample) -> float:
    """The slowest request of a run."""
    return sample.result.longest_us if sample.result is not None else 0.0


def idle(results: Results) -> Iterator[Verdict]:
    """CPU of a daemon without work."""
    found = results.spread("idle", "idle", FOREBAY)
    if found is not None:
        yield Verdict("CPU of an idle daemon", "< 1 %", f"{found.median:.2f} %", found.median < 1)

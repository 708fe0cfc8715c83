"""What is measured, and what was found.

A *group* has *stages*. A stage prepares *targets* (Forebay in some state, peers, the raw device) and has *cases* (the
work), each of which is run on every target in every round; a run gives a *sample*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from comparison.figures import Spread, per_request_us
from fio_client import Result, Side, flush_after

RAW = "raw"
FOREBAY = "forebay"
# Clients that are connected and ask for nothing, and Forebay with them.
CROWD = 1000
CROWDED = f"forebay, {CROWD} idle"


@dataclass(frozen=True)
class Case:
    """One kind of work. `name` is unique in its group.

    With `seconds` 0 fio runs until all that the job names is done. Without `job` nothing is asked for that long: what
    an idle server costs. `only` names targets if not all are measured. `flash` says that its stalls are judged. After
    `writes_per_flush` writes there is a flush, if that is not 0.
    """

    name: str
    job: tuple[str, ...]
    unit: str = "IOPS"
    seconds: float = 0.0
    only: frozenset[str] = frozenset()
    flash: bool = True
    writes_per_flush: int = 0

    def options(self, target: Target) -> list[str]:
        """What fio needs for this work on that target, but for the seed."""
        return [*self.job, *target.extra, *flush_after(target.client, self.writes_per_flush)]


@dataclass
class Target:
    """Something that a case can be run on.

    `pids` are the processes whose CPU time is its cost; empty for a plain file. `before` brings the state back in which
    each run of a case shall begin, and may change `pids`. `counters` reads statistics of the server. `below` is where
    content is put if that would take too long through `client`; it is read back through `client` all the same.
    """

    name: str
    client: list[str]
    pids: list[int] = field(default_factory=list)
    extra: tuple[str, ...] = ()
    before: Callable[[], None] | None = None
    counters: Callable[[], dict[str, int]] | None = None
    below: list[str] | None = None


@dataclass(frozen=True)
class Stage:
    """Targets that are prepared together, and the cases that are run on them.

    The first target is what the others are compared to. `disk_bytes` and `prepare_s` are estimates.
    """

    group: str
    title: str
    cases: tuple[Case, ...]
    prepare: Callable[[Path], AbstractContextManager[list[Target]]]
    targets: tuple[str, ...]
    disk_bytes: int
    prepare_s: float
    rounds_max: int = 100

    def planned(self, rounds: int) -> Iterator[tuple[Case, str]]:
        """All runs of this stage, in no particular order."""
        for case in self.cases:
            for name in self.targets:
                if not case.only or name in case.only:
                    for _ in range(min(rounds, self.rounds_max)):
                        yield case, name


@dataclass(frozen=True)
class Sample:
    """One run of a case on a target."""

    group: str
    case: str
    target: str
    round: int
    unit: str
    flash: bool
    elapsed_s: float
    server_cpu_s: float
    has_server: bool
    pressure: float
    foreign: float
    disturbed: bool
    attempts: int
    counters: dict[str, int]
    result: Result | None

    @property
    def value(self) -> float:
        """The figure of the case in its unit."""
        if self.result is None:
            return 100 * self.server_cpu_s / self.elapsed_s
        return self.result.mbytes_per_s if self.unit == "MB/s" else self.result.iops

    @property
    def server_us(self) -> float | None:
        """CPU time of the server for each request, in microseconds."""
        if self.result is None or not self.has_server:
            return None
        return per_request_us(self.server_cpu_s, self.result.requests)

    @property
    def amplification(self) -> float | None:
        """Bytes written to the cache device for each byte that was to be stored: that clients wrote or reads filled."""
        asked = self.counters.get("written_bytes", 0) + 4096 * self.counters.get("filled_blocks", 0)
        return (
            self.counters["cache_written_bytes"] / asked if asked and "cache_written_bytes" in self.counters else None
        )

    @property
    def hit_share(self) -> float | None:
        """Share of the blocks read that were in the cache."""
        hits, misses = self.counters.get("read_hit_blocks", 0), self.counters.get("read_miss_blocks", 0)
        return hits / (hits + misses) if hits + misses else None


@dataclass
class Results:
    """All samples of a run. `order` has the targets of each group as the stages name them: they ran shuffled."""

    samples: list[Sample] = field(default_factory=list)
    order: dict[str, list[str]] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Appends one."""
        self.samples.append(sample)

    def groups(self) -> list[str]:
        """Groups in the order in which they were run."""
        return list(dict.fromkeys(sample.group for sample in self.samples))

    def cases(self, group: str) -> list[str]:
        """Cases of a group in the order in which they were run."""
        return list(dict.fromkeys(sample.case for sample in self.samples if sample.group == group))

    def targets(self, group: str) -> list[str]:
        """Targets of a group, the one that others are compared to first."""
        return self.order[group]

    def expect(self, group: str, targets: Sequence[str]) -> None:
        """A stage of a group has these targets, in this order."""
        known = self.order.setdefault(group, [])
        known.extend(name for name in targets if name not in known)

    def of(self, group: str, case: str, target: str) -> list[Sample]:
        """Samples of one case on one target, by round."""
        found = [s for s in self.samples if (s.group, s.case, s.target) == (group, case, target)]
        return sorted(found, key=lambda sample: sample.round)

    def spread(self, group: str, case: str, target: str) -> Spread | None:
        """Of the figure of the case; nothing if it was not run."""
        values = [sample.value for sample in self.of(group, case, target)]
        return Spread.of(values) if values else None

    def as_json(self) -> list[dict[str, object]]:
        """Plain structures, with what follows from them beside."""
        return [
            dataclasses.asdict(s) | {"value": s.value, "server_us": s.server_us, "amplification": s.amplification}
            for s in self.samples
        ]


def side_of(samples: Sequence[Sample]) -> list[Side]:
    """The main direction of each sample that has one."""
    return [sample.result.main for sample in samples if sample.result is not None]

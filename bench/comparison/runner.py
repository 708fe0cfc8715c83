"""Runs stages: every case on every target in every round, targets in another order each time.

While one target is measured the servers of the others are paused (SIGSTOP). So Forebay's destage neither takes the
processor or the disk from a peer, nor gets the time between its own runs for nothing: what was left dirty by one run is
still there when its next one begins.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness as h
from comparison.cpu import Meter, Usage
from comparison.model import Case, Results, Sample, Stage, Target
from comparison.progress import Progress
from fio_client import Result, fio

SETTLE_S = 0.1


@dataclass(frozen=True)
class Plan:
    """What is to be done. `disturbed_share` of all processors is what others may take from a run."""

    stages: Sequence[Stage]
    rounds: int
    repeats: int
    disturbed_share: float
    where: Path

    def runs(self) -> list[tuple[Case, str]]:
        """All runs, without repetitions."""
        return [run for stage in self.stages for run in stage.planned(self.rounds)]

    def progress(self) -> Progress:
        """A display for it."""
        runs = self.runs()
        return Progress(len(runs), sum(case.seconds for case, _ in runs), [stage.prepare_s for stage in self.stages])


def run(plan: Plan, progress: Progress, results: Results) -> None:
    """Everything, into `results`. A target that serves errors or wrong content ends it with `Failure`."""
    for stage in plan.stages:
        progress.stage(f"{stage.group}: {stage.title}")
        with h.workspace(plan.where) as folder, stage.prepare(folder) as targets:
            missing = set(stage.targets) ^ {target.name for target in targets}
            if missing:
                raise h.Failure(f"{stage.group}: planned and prepared targets differ: {', '.join(sorted(missing))}")
            progress.prepared()
            results.expect(stage.group, stage.targets)
            try:
                run_stage(plan, stage, targets, progress, results)
            finally:
                for target in targets:
                    wake(target)
    progress.end()


def run_stage(plan: Plan, stage: Stage, targets: list[Target], progress: Progress, results: Results) -> None:
    """All rounds of one stage."""
    order = random.Random(7)
    for target in targets:
        pause(target)
    for number in range(1, min(plan.rounds, stage.rounds_max) + 1):
        for index, case in enumerate(stage.cases):
            chosen = [target for target in targets if not case.only or target.name in case.only]
            order.shuffle(chosen)
            for target in chosen:
                progress.run(f"{stage.group}: {case.name} on {target.name}, round {number}")
                began = time.monotonic()
                with awake(target):
                    sample = best(plan, stage, case, target, number, seed=1000 * number + index)
                results.add(sample)
                progress.ran(case.seconds, time.monotonic() - began)


def best(plan: Plan, stage: Stage, case: Case, target: Target, number: int, seed: int) -> Sample:
    """Runs a case until nobody disturbed it, or as often as is allowed; gives the run that was disturbed least."""
    samples: list[Sample] = []
    for attempt in range(1, plan.repeats + 2):
        if target.before is not None:
            target.before()
        counters, usage, result = measure(case, target, seed)
        samples.append(
            Sample(
                group=stage.group,
                case=case.name,
                target=target.name,
                round=number,
                unit=case.unit,
                flash=case.flash,
                elapsed_s=usage.elapsed_s,
                server_cpu_s=usage.server_cpu_s,
                has_server=bool(target.pids),
                pressure=usage.pressure,
                foreign=usage.foreign,
                disturbed=usage.foreign > plan.disturbed_share,
                attempts=attempt,
                counters=counters,
                result=result,
            )
        )
        if not samples[-1].disturbed:
            break
    return min(samples, key=lambda sample: sample.foreign)


def measure(case: Case, target: Target, seed: int) -> tuple[dict[str, int], Usage, Result | None]:
    """One run: what counters grew by, who used the processor, and what the client saw."""
    before = target.counters() if target.counters else {}
    meter = Meter(target.pids)
    if case.job:
        seeded = ["--randrepeat=0", f"--randseed={seed}"]
        result = fio(target.client, [*case.options(target), *seeded], case.seconds)
        # The last flush may be cut off by the end of the run, and on a device that stands still it may be the only one.
        due = case.writes_per_flush and result.write and result.write.requests > case.writes_per_flush
        if due and result.sync is None:
            raise h.Failure(f"{target.name}: {case.name} was to flush, and did not")
    else:
        result = None
        time.sleep(case.seconds)
    usage = meter.read()
    after = target.counters() if target.counters else {}
    if after.get("failed_requests", 0) > before.get("failed_requests", 0):
        raise h.Failure(f"{target.name} failed requests during {case.name}")
    return {name: after[name] - before[name] for name in after if name in before}, usage, result


@contextmanager
def awake(target: Target) -> Iterator[None]:
    """Lets the servers of a target run in this block, and only there."""
    wake(target)
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        pause(target)


def wake(target: Target) -> None:
    """Lets the servers of a target go on."""
    for pid in target.pids:
        os.kill(pid, signal.SIGCONT)


def pause(target: Target) -> None:
    """Stops the servers of a target where they are. One that has ended is an error of its own: its next run says so."""
    for pid in target.pids:
        os.kill(pid, signal.SIGSTOP)

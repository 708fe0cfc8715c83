"""How stages are run: pauses, repetitions, failures. With nbdkit as the server where one is needed."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from samples import side

from comparison import runner, servers
from comparison.cpu import Usage
from comparison.model import Case, Results, Stage, Target
from comparison.progress import Progress
from fio_client import Result
from harness import Failure

needs_tools = pytest.mark.skipif(
    shutil.which("fio") is None or shutil.which("nbdkit") is None, reason="fio and nbdkit: scripts/setup installs them"
)
READS = Case("reads", ("--rw=randread", "--bs=4k", "--size=1M", "--iodepth=2"), seconds=0.2)


def state(pid: int) -> str:
    """The letter that the kernel has for a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[0]


def stage(names: dict[str, list[str]], seen: list[dict[str, str]]) -> Stage:
    """One nbdkit for each name; before each run `seen` gets the states of all."""

    @contextmanager
    def prepare(folder: Path) -> Iterator[list[Target]]:
        with ExitStack() as stack:
            targets = [stack.enter_context(servers.nbdkit(folder, name, *words)) for name, words in names.items()]
            for target in targets:
                target.before = lambda: seen.append({each.name: state(each.pids[0]) for each in targets})
            yield targets

    return Stage("group", "title", (READS,), prepare, tuple(names), 1, 1.0)


def plan(of: Stage, where: Path, rounds: int = 1) -> runner.Plan:
    """A plan that nobody can disturb."""
    return runner.Plan([of], rounds, 0, 1.1, where)


def quiet(of: runner.Plan) -> Progress:
    """Progress that nobody reads."""
    return Progress(len(of.runs()), 1, [1.0], stream=io.StringIO())


@needs_tools
def test_only_the_target_under_measurement_runs(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    both = plan(stage({"one": ["memory", "1M"], "two": ["memory", "1M"]}, seen), tmp_path, rounds=2)
    results = Results()
    runner.run(both, quiet(both), results)
    assert len(seen) == len(results.samples) == 4
    assert all(sorted(states.values())[1] == "T" and "T" in states.values() for states in seen)
    assert all(list(states.values()).count("T") == 1 for states in seen)
    assert [sample.round for sample in results.of("group", "reads", "one")] == [1, 2]
    assert all(sample.value > 0 and sample.server_us is not None for sample in results.samples)
    assert list(tmp_path.iterdir()) == []


@needs_tools
def test_a_target_that_serves_errors_fails_the_comparison(tmp_path: Path) -> None:
    bad = plan(stage({"bad": ["--filter=error", "memory", "1M", "error-pread-rate=20%"]}, []), tmp_path)
    with pytest.raises(Failure, match=r"exit code|error"):
        runner.run(bad, quiet(bad), Results())
    assert list(tmp_path.iterdir()) == []


@needs_tools
def test_a_target_that_dies_fails_the_comparison(tmp_path: Path) -> None:
    dying = stage({"dying": ["memory", "1M"]}, [])

    @contextmanager
    def prepare(folder: Path) -> Iterator[list[Target]]:
        with dying.prepare(folder) as targets:
            (folder / "dying.sock").unlink()
            yield targets

    gone = plan(Stage("group", "title", (READS,), prepare, ("dying",), 1, 1.0), tmp_path)
    with pytest.raises(Failure):
        runner.run(gone, quiet(gone), Results())


def fake_runs(monkeypatch: pytest.MonkeyPatch, foreign: list[float]) -> None:
    """Runs that others disturb as listed, one after the other."""
    left = iter(foreign)

    def measure(_case: Case, _target: Target, seed: int) -> tuple[dict[str, int], Usage, Result | None]:
        assert seed == 1000
        share = next(left)
        return {}, Usage(1.0, 0.1, 0.5, share), Result(1.0, side(iops=share), None, None, 0.1)

    monkeypatch.setattr(runner, "measure", measure)


@pytest.mark.parametrize(
    ("foreign", "attempts", "kept", "disturbed"),
    [
        ([0.01], 1, 0.01, False),
        ([0.3, 0.04], 2, 0.04, False),
        ([0.3, 0.2, 0.4], 3, 0.2, True),
    ],
)
def test_a_disturbed_run_is_repeated_and_the_best_is_kept(
    monkeypatch: pytest.MonkeyPatch, foreign: list[float], attempts: int, kept: float, disturbed: bool
) -> None:
    fake_runs(monkeypatch, foreign)
    of = runner.Plan([], 1, 2, 0.05, Path())
    target = Target("t", [])
    tried: list[int] = []
    target.before = lambda: tried.append(1)
    sample = runner.best(of, stage({}, []), READS, target, 1, seed=1000)
    assert (len(tried), sample.foreign, sample.disturbed) == (attempts, kept, disturbed)


def test_failed_requests_in_the_statistics_fail_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter([{"failed_requests": 1}, {"failed_requests": 2}])
    target = Target("t", [], counters=lambda: next(counted))
    monkeypatch.setattr(runner, "fio", lambda *_: Result(1.0, side(), None, None, 0.1))
    with pytest.raises(Failure, match="failed requests"):
        runner.measure(READS, target, 1)


def test_progress_foresees_the_rest() -> None:
    out = io.StringIO()
    progress = Progress(runs=10, run_s=100, stages_s=[5.0], stream=out)
    progress.overhead_s = 1.0
    assert progress.left_s() == 115
    progress.prepared()
    for _ in range(10):
        progress.ran(10, 11)
    assert progress.left_s() == 0
    progress.say("something")
    assert out.getvalue() == "[10/10] something; about 0:00 left\n"


def test_a_flush_that_does_not_happen_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("writes", ("--rw=write",), seconds=1, writes_per_flush=1)
    asked: list[list[str]] = []

    def fio(_: list[str], job: list[str], _seconds: float) -> Result:
        asked.append(job)
        return Result(1.0, None, side(), None, 0.1)

    monkeypatch.setattr(runner, "fio", fio)
    for client, option in ((["--ioengine=nbd"], "--fsync=1"), (["--ioengine=io_uring"], "--fdatasync=1")):
        with pytest.raises(Failure, match="was to flush"):
            runner.measure(case, Target("t", client), 1)
        assert option in asked[-1]

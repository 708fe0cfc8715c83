"""Rows are measured once, again if others disturbed them, and never twice after a run was ended in the middle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from samples import Counting, Silent

from forebay_lab import cli, report, runner, store
from forebay_lab.experiment import Lies, Refused, Row, Scale, Work

BUILT = {"counter": "abc"}


def start(tmp_path: Path, experiment: Counting, scale: Scale = Scale.QUICK) -> store.Run:
    return store.begin(
        tmp_path / "runs", "counting", scale, experiment.rows(scale), {"cores": "2"}, {"where": "x"}, BUILT
    )


def measure(tmp_path: Path, experiment: Counting, run: store.Run, watcher: Silent | None = None) -> None:
    runner.go(experiment, run, place(tmp_path), watcher or Silent())


def place(tmp_path: Path, attempts: int = 3) -> runner.Place:
    return runner.Place(tmp_path / "work", tmp_path / "ledger", attempts)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What others take from each attempt; 0 when the list has come to its end."""
    shares: list[float] = []
    measure = runner.attempt

    def attempt(*arguments: object) -> object:
        one, measured = measure(*arguments)  # type: ignore[arg-type]
        share = shares.pop(0) if shares else 0.0
        return replace(one, foreign=share, disturbed=share > runner.DISTURBED), measured

    monkeypatch.setattr(runner, "attempt", attempt)
    return shares


def test_each_row_once_and_nothing_left(tmp_path: Path, foreign: list[float]) -> None:
    del foreign
    experiment = Counting()
    run = start(tmp_path, experiment)
    measure(tmp_path, experiment, run)
    assert experiment.measured == ["a", "b", "c"]
    assert list((tmp_path / "work").iterdir()) == [] and list((tmp_path / "ledger").iterdir()) == []
    again = store.load(run.path)
    assert again == run and again.missing == []
    assert again.results().samples["b"]["n"].tolist() == [2, 0.5]


def test_a_disturbed_row_is_measured_again_and_the_quietest_counts(tmp_path: Path, foreign: list[float]) -> None:
    foreign[:] = [0.5, 0.02, 0.9, 0.3, 0.4]
    experiment = Counting()
    run = start(tmp_path, experiment)
    watcher = Silent()
    measure(tmp_path, experiment, run, watcher)
    assert experiment.measured == ["a", "a", "b", "b", "b", "c"]
    assert run.kept["a"].summary["n"] == 2 and not run.kept["a"].disturbed
    assert run.kept["b"].summary["n"] == 4 and run.kept["b"].disturbed
    assert len(list(run.path.glob("b.*.csv"))) == 2
    assert [told for told in watcher.told if told.startswith("b")] == ["b 1", "b 2", "b 3", "b done"]


def test_nothing_is_repeated_if_nobody_wants_it(tmp_path: Path, foreign: list[float]) -> None:
    foreign[:] = [0.9] * 3
    experiment = Counting()
    run = start(tmp_path, experiment)
    runner.go(experiment, run, place(tmp_path, attempts=1), Silent())
    assert experiment.measured == ["a", "b", "c"]
    assert runner.ATTEMPTS[Scale.SMOKE] == 1


def test_a_run_that_ended_in_the_middle_goes_on(tmp_path: Path, foreign: list[float]) -> None:
    del foreign

    def fails(row: Row, work: Work) -> None:
        (work.folder / "something").write_text("x")
        if row.name == "b":
            raise Refused("no room")

    experiment = Counting(fails)
    run = start(tmp_path, experiment)
    with pytest.raises(Refused):
        measure(tmp_path, experiment, run)
    assert list((tmp_path / "work").iterdir()) == [], "what the row made is gone"
    found = store.unfinished(tmp_path / "runs", start(tmp_path, experiment), run.rows)
    assert found is not None and [row.name for row in found.missing] == ["b", "c"]
    assert store.unfinished(tmp_path / "runs", run, run.rows[:1]) is None, "what is asked for is there"
    for other in (
        replace(run, scale=Scale.FULL),
        replace(run, options={"where": "y"}),
        replace(run, rows=[Row("d", 1.0)]),
        replace(run, binaries={"counter": "another build"}),
    ):
        assert store.unfinished(tmp_path / "runs", other, run.rows) is None
    better = Counting()
    runner.go(better, found, place(tmp_path), Silent(), [found.rows[2]])
    assert better.measured == ["c"], "one row only, because nothing else was asked for"
    found = store.unfinished(tmp_path / "runs", run, run.rows)
    assert found is not None
    measure(tmp_path, better, found)
    assert better.measured == ["c", "b"]
    assert store.unfinished(tmp_path / "runs", run, run.rows) is None


def test_a_row_that_found_wrong_data_is_marked_and_never_measured_again(tmp_path: Path, foreign: list[float]) -> None:
    del foreign

    def lies(row: Row, work: Work) -> None:
        (work.folder / "server.log").write_text("the reason")
        if row.name == "b":
            raise Lies("not what was written")

    experiment = Counting(lies)
    run = start(tmp_path, experiment)
    with pytest.raises(Lies):
        measure(tmp_path, experiment, run)
    assert (run.path / "b.wrong/server.log").read_text() == "the reason"
    found = store.unfinished(tmp_path / "runs", run, run.rows)
    assert found is not None and [row.name for row in found.missing] == ["c"]
    (told,) = [one for one in report.said_first(store.load(run.path)) if "WRONG DATA" in one]
    assert told == "WRONG DATA in b, which therefore has no figure: not what was written."


def test_damaged_runs_are_refused(tmp_path: Path) -> None:
    run = start(tmp_path, Counting())
    run.save()
    (run.path / "run.json").write_text('{"experiment": "counting"')
    with pytest.raises(Refused, match="damaged"):
        store.load(run.path)
    with pytest.raises(Refused, match="no run"):
        store.load(tmp_path)


def test_the_report_has_everything_in_one_page(tmp_path: Path, foreign: list[float]) -> None:
    foreign[:] = [0.0, 0.6, 0.6, 0.6]
    experiment = Counting()
    run = start(tmp_path, experiment)
    measure(tmp_path, experiment, run)
    del run.kept["c"]
    page = report.write(experiment, run).read_text()
    assert "Counting &lt;rows&gt; &amp; more" in page
    assert "A quick run" in page and "1 of 3 rows were not measured" in page
    assert "Others used the processors during: b." in page
    assert "data:image/png;base64," in page and 'src="http' not in page
    assert "Published: fingers" in page and "<dt>cores</dt><dd>2</dd>" in page
    assert (run.path / "n.png").read_bytes().startswith(b"\x89PNG")


def test_an_experiment_means_the_newest_of_its_longest_runs(tmp_path: Path) -> None:
    def run(experiment: str, scale: Scale, name: str, *, measured: bool = True) -> store.Run:
        kept = {"a": store.Kept({})} if measured else {}
        return store.Run(tmp_path / name, experiment, scale, {}, {}, name, [Row("a", 1.0)], kept=kept)

    runs = [
        run("x", Scale.FULL, "1"),
        run("x", Scale.FULL, "2"),
        run("x", Scale.FULL, "3", measured=False),
        run("x", Scale.SMOKE, "4"),
        run("y", Scale.QUICK, "5"),
    ]

    def meant(word: str) -> list[str]:
        return [one.path.name for one in cli.named(runs, word, ["x", "y", "z"])]

    assert (meant("x"), meant("y"), meant("z"), meant("all")) == (["2"], ["5"], [], ["2", "5"])
    assert (meant("3"), meant(""), meant("nothing")) == (["3"], ["5"], [])


def test_a_place_that_cannot_be_worked_in_is_refused(tmp_path: Path) -> None:
    assert cli.workable(tmp_path / "a/../new/folder") == tmp_path.resolve() / "new/folder"
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file/below", Path("/proc/nothing")):
        with pytest.raises(Refused, match="--where"):
            cli.workable(wrong)

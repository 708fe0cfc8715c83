"""The command line, with runs that do not happen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from samples import results, sample

import harness
from comparison import cli
from comparison.model import FOREBAY, RAW, Results
from comparison.progress import Progress
from comparison.runner import Plan
from comparison.scale import DEFAULT, QUICK
from comparison.stages import GROUPS
from harness import Failure

CASE = "random read 4k, depth 32 x 1"


def run_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, iops: float, *words: str, fails: bool = False) -> int:
    """`bench/compare --group hits` on a machine where Forebay reaches so much of what raw does."""

    def run(_plan: Plan, _progress: Progress, into: Results) -> None:
        found = results(sample("hits", CASE, RAW, 1000), sample("hits", CASE, FOREBAY, iops))
        into.samples, into.order = found.samples, found.order
        if fails:
            raise Failure("the content of a target is wrong")

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(cli, "check_tools", lambda _where, _stages: None)
    out = ["--json", str(tmp_path / "out.json"), "--markdown", str(tmp_path / "out.md"), "--no-plot"]
    return cli.compare(cli.parser().parse_args(["--group", "hits", *out, *words]))


def test_a_missed_goal_is_no_failure_unless_enforced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_with(monkeypatch, tmp_path, 500) == 0
    assert "MISS" in (tmp_path / "out.md").read_text()
    assert run_with(monkeypatch, tmp_path, 500, "--enforce") == 1
    assert run_with(monkeypatch, tmp_path, 1000, "--enforce") == 0


def test_the_output_says_what_was_measured_on_what(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_with(monkeypatch, tmp_path, 500, "--quick") == 0
    about = json.loads((tmp_path / "out.json").read_text())["about"]
    wanted = {"kernel", "processor", "cores", "storage", "commit", "forebay", "fio", "nbdkit", "qemu-nbd", "libnbd"}
    assert wanted | {"scale", "rounds", "seconds", "repeats", "disturbed_pct", "groups"} <= about.keys()
    assert about["scale"] == "quick"


def test_what_was_found_before_a_failure_is_kept_and_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="content"):
        run_with(monkeypatch, tmp_path, 500, fails=True)
    assert "INCOMPLETE: the content of a target is wrong" in (tmp_path / "out.md").read_text()
    assert len(json.loads((tmp_path / "out.json").read_text())["samples"]) == 2


def test_what_is_said_replaces_what_the_scale_has() -> None:
    words = ["--quick", "--seconds", "0.5", "--rounds", "7", "--repeats", "0"]
    scale = cli.scaled(cli.parser().parse_args(words))
    assert (scale.seconds, scale.rounds, scale.repeats, scale.work_bytes) == (0.5, 7, 0, QUICK.work_bytes)
    assert cli.scaled(cli.parser().parse_args([])) == DEFAULT


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--seconds", "0"], ["--repeats", "-1"]])
def test_numbers_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(Failure, match="must be more than 0"):
        cli.scaled(cli.parser().parse_args(words))


def test_too_little_space_is_noticed_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(harness, "FOREBAY", tmp_path)
    (stage,) = GROUPS["flush"].stages(QUICK)
    cli.check_tools(tmp_path, [])
    with pytest.raises(Failure, match="GiB free"):
        cli.check_tools(tmp_path, [replace(stage, disk_bytes=1 << 60)])
    monkeypatch.setattr(cli, "TOOLS", ("fio", "no-such-tool"))
    with pytest.raises(Failure, match="not installed: no-such-tool"):
        cli.check_tools(tmp_path, [])

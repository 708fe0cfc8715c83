"""The plan: every case has a name of its own, and a target to be compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparison.cli import choose
from comparison.model import Case, Stage
from comparison.scale import DEFAULT, FULL, QUICK, Scale
from comparison.stages import ALIASES, GROUPS
from harness import Failure


@pytest.mark.parametrize("scale", [QUICK, DEFAULT, FULL], ids=lambda scale: scale.name)
@pytest.mark.parametrize("name", GROUPS)
def test_cases_have_names_of_their_own_and_known_targets(name: str, scale: Scale) -> None:
    stages = GROUPS[name].stages(scale)
    names = [case.name for stage in stages for case in stage.cases]
    assert len(names) == len(set(names))
    for stage in stages:
        assert stage.group == name
        assert len(set(stage.targets)) == len(stage.targets) > 0
        assert stage.disk_bytes > 0
        for case in stage.cases:
            assert case.only <= set(stage.targets)


def test_runs_are_planned_for_each_round_case_and_target() -> None:
    cases = (Case("a", ("x",)), Case("b", ("y",), only=frozenset({"two"})))
    stage = Stage("g", "t", cases, lambda _: None, ("one", "two"), 1, 1.0)  # type: ignore[arg-type, return-value]
    planned = [(case.name, target) for case, target in stage.planned(3)]
    assert sorted(planned) == sorted([("a", "one"), ("a", "two"), ("b", "two")] * 3)


def test_groups_are_chosen_by_name_and_run_in_one_order() -> None:
    assert choose([]) == list(GROUPS)
    assert choose(["idle,hits"]) == ["hits", "idle"]
    assert choose(["cost", "mix"]) == [name for name in GROUPS if name in (*ALIASES["cost"], "mix")]


def test_an_unknown_group_is_named() -> None:
    with pytest.raises(Failure, match="'hit'"):
        choose(["hit"])


def test_the_commands_of_the_readme_name_groups_that_exist() -> None:
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    for name in GROUPS:
        assert f"`{name}`" in readme, f"bench/README.md does not explain the group {name}"

"""What `scripts/mutants` draws, applies and counts."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LOADER = SourceFileLoader("mutants", str(SCRIPTS / "mutants"))
SPEC = importlib.util.spec_from_loader("mutants", LOADER)
assert SPEC is not None
m = importlib.util.module_from_spec(SPEC)
sys.modules["mutants"] = m
LOADER.exec_module(m)

SOURCE = "fn f(a: u32) -> bool {\n    a > 1 || a == 0\n}\n"


def mutant(name: str) -> m.Mutant:
    """A mutant of this name that is not applied."""
    return m.Mutant(name, "src/lib.rs", (1, 1), (1, 1), "")


def test_a_listed_mutant_replaces_its_span() -> None:
    span = {"start": {"line": 2, "column": 11}, "end": {"line": 2, "column": 13}}
    listed = {"file": "a.rs", "span": span, "replacement": "&&", "function": {"function_name": "f"}}
    one = m.Mutant.of({**listed, "genre": "BinaryOperator"}, SOURCE)
    assert one.name == "a.rs:2:11: replace || with && in f"
    assert one.applied(SOURCE) == SOURCE.replace("||", "&&")
    over = m.Mutant("y", "src/lib.rs", (2, 5), (2, 20), "true")
    assert over.applied(SOURCE) == "fn f(a: u32) -> bool {\n    true\n}\n"


def test_the_sample_depends_on_the_seed_and_not_on_the_order() -> None:
    all_of_them = [mutant(f"a.rs:{line}: replace f{line}") for line in range(50)]
    first = m.drawn(all_of_them, [], "", 10, 1)
    assert len(first) == 10
    assert first == m.drawn(all_of_them[::-1], [], "", 10, 1)
    assert first != m.drawn(all_of_them, [], "", 10, 2)
    assert first == m.drawn(all_of_them, [], "", 20, 1)[:10], "a larger sample goes on where a smaller one ends"


def test_what_changes_nothing_is_not_drawn() -> None:
    known = m.equivalents('[[equivalent]]\nname = "in describe$"\nreason = "a text"\n')
    names = ["a.rs:1:1: replace + with - in describe", "a.rs:2:1: replace + with - in decide"]
    left = m.drawn([mutant(name) for name in names], known, "", 10, 1)
    assert [one.name for one in left] == names[1:]
    assert m.drawn([mutant(name) for name in names], [], r"rs:1:", 10, 1)[0].name == names[0]


def test_the_list_of_those_that_change_nothing_can_be_read() -> None:
    assert all(reason for _, reason in m.equivalents((SCRIPTS / "mutants.toml").read_text()))


@pytest.mark.parametrize(("results", "share"), [("ccccccccct", 1.0), ("cccccccccsu", 0.9), ("ss", 0.0), ("u", 1.0)])
def test_what_does_not_build_does_not_count(results: str, share: float) -> None:
    words = {"c": m.CAUGHT, "s": m.SURVIVED, "t": m.TIMEOUT, "u": m.UNBUILDABLE}
    outcomes = [m.Outcome(str(at), words[letter], "", 0.0) for at, letter in enumerate(results)]
    assert m.share_caught(outcomes) == pytest.approx(share)


def test_a_survivor_is_found_again_where_its_line_has_moved() -> None:
    there = [mutant("a.rs:7:3: replace + with - in f"), mutant("a.rs:9:3: replace + with * in g")]
    there += [mutant("a.rs:1:1: twice in h"), mutant("a.rs:2:1: twice in h")]
    names = [
        "a.rs:5:3: replace + with - in f",
        "a.rs:9:3: replace + with * in g",
        "a.rs:4:1: twice in h",
        "a.rs:2:1: twice in h",
    ]
    found = m.found_again([*names, "a.rs:1:1: gone"], there)
    assert [found[name] for name in names] == [there[0], there[1], None, there[3]]
    assert found["a.rs:1:1: gone"] is None


def test_the_copy_has_all_that_its_members_need() -> None:
    manifest = m.of_members((m.ROOT / "Cargo.toml").read_text())
    assert manifest.count('"crates/') == 2 * len(m.MEMBERS) + len(m.MEMBERS), manifest
    for name in m.MEMBERS:
        own = (m.ROOT / "crates" / name / "Cargo.toml").read_text()
        needed = [line.partition(".")[0].partition(" ")[0] for line in own.splitlines() if line.startswith("forebay-")]
        assert set(needed) <= set(m.MEMBERS), f"{name} needs {needed}"
    with pytest.raises(m.Failure):
        m.of_members("[workspace]\n")


def test_a_name_that_fits_no_mutant_is_an_error() -> None:
    known = m.equivalents('[[equivalent]]\nname = "in describe$"\nreason = "a text"\n')
    m.check_known(known, [mutant("a.rs:1:1: replace + with - in describe")])
    with pytest.raises(m.Failure, match="in describe"):
        m.check_known(known, [mutant("a.rs:1:1: replace + with - in decide")])

"""What `scripts/structure` counts, in a small made-up tree."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LOADER = SourceFileLoader("structure", str(SCRIPTS / "structure"))
SPEC = importlib.util.spec_from_loader("structure", LOADER)
assert SPEC is not None
m = importlib.util.module_from_spec(SPEC)
sys.modules["structure"] = m
LOADER.exec_module(m)

FILES = {
    "crates/forebay-core/Cargo.toml": '[package]\nname = "forebay-core"\n',
    "crates/forebay-core/src/lib.rs": """//! Not an import: [`crate::engine`].
mod config;
mod engine;
mod map;
mod request;
#[cfg(test)]
mod testing;

pub use engine::Engine;
pub use map::*;
""",
    "crates/forebay-core/src/config.rs": """/// Named { badly.
pub enum PlantedBug {
    /// One.
    SkipChecksum,
    Other,
}

impl PlantedBug {
    pub const ALL: [Self; 2] = [Self::SkipChecksum, PlantedBug::Other];
}
""",
    "crates/forebay-core/src/engine.rs": """use crate::config::PlantedBug;
use crate::map::Index;
use crate::request::{self, write::Write};

pub struct Engine {
    pub(crate) map: Index<u8, Vec<u8>>,
    pub now: u64,
    pub(crate) callback: fn(u32) -> Vec<(u8, u8)>,
    writes: [Vec<Write>; 3],
}

impl Engine {
    fn turn(&mut self) {
        if self.planted(PlantedBug::SkipChecksum) || self.planted(PlantedBug::Other) {
            request::start("I4: not an assertion");
        }
        assert!(self.now > 0, "I1: a clock { that goes");
        debug_assert!(true, "I2: only when debugging");
    }

    pub(crate) fn planted(&self, _: PlantedBug) -> bool {
        /* a comment /* within */ fn none() {} */
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::helper;

    #[test]
    fn one() {
        assert!(helper(), "I3: a test proves nothing here");
    }
}
""",
    "crates/forebay-core/src/map.rs": """pub struct Index<K, V>(K, V);
impl<K, V> Index<K, V> {
    fn find(&self) -> char {
        '{'
    }
}
""",
    "crates/forebay-core/src/request/mod.rs": """pub mod write;
pub use write::start;
""",
    "crates/forebay-core/src/request/write.rs": """pub struct Write;
pub fn start<'a>(_: &'a str) {
    let engine: Option<crate::Engine> = None;
    engine.expect("I5: there is one");
}
impl crate::engine::Engine {
    fn far(&self) {}
}
""",
    "crates/forebay-core/src/testing.rs": "pub fn helper() -> bool {\n    true\n}\n",
    "crates/forebay-core/src/map_tests.rs": "fn test() {}\n",
    "crates/forebay-core/tests/all.rs": "fn test() {}\n",
    "crates/forebay-core/benches/one.rs": "fn bench() {}\n",
    "ARCHITECTURE.md": "# One two\n\n| | x |\n| --- | --- |\n| I1 | a |\n| I4 | b |\n| I5 | c |\n| I6 | d |\n"
    "\nJudged by the simulator:\nI6.\n",
    "README.md": "three words here\n",
    "docs/a/b.md": "two words - and - dashes\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def found(tree: Path) -> dict[str, Any]:
    return m.measured(tree)


def test_lines_of_tests_are_told_from_production(found: dict[str, Any]) -> None:
    core = found["crates"]["forebay-core"]
    lines = {name: len(text.splitlines()) for name, text in FILES.items() if name.endswith(".rs")}
    apart = sum(count for name, count in lines.items() if "test" in name)
    assert core["other"] == 1
    # The modules at the end of engine.rs, and two lines of lib.rs.
    assert core["tests"] == apart + 9 + 2
    assert core["production"] + core["tests"] + core["other"] == sum(lines.values())
    assert core["files"] == 6


def test_functions_end_at_their_own_brace(found: dict[str, Any]) -> None:
    # turn 7, planted 4, find 3, start 4, far 1.
    assert found["functions"] == {"count": 5, "median": 4, "p90": 7, "max": 7}
    assert found["long functions"] == []


def test_methods_and_fields_of_the_engine(found: dict[str, Any]) -> None:
    engine = found["engine"]
    assert (engine["open fields"], engine["private fields"]) == (3, 1)
    assert (engine["methods"], engine["files"]) == (3, 2)
    assert engine["crate fields"] == 2
    assert engine["most methods"] == {"Engine": 3, "Index": 1, "PlantedBug": 0}


def test_imports_are_followed_to_the_definition(found: dict[str, Any]) -> None:
    core = found["crates"]["forebay-core"]
    source = "crates/forebay-core/src/"
    # Neither the re-exports of lib.rs and request/mod.rs nor what a test imports are in the circle.
    assert core["circles"] == [[source + "engine.rs", source + "request/write.rs"]]
    assert core["upwards"] == 1


def test_an_order_has_as_few_imports_upwards_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {("a", "b"): 3, ("b", "c"): 3, ("c", "a"): 1, ("c", "b"): 1}
    assert m.best_order(weights, ["c", "b", "a"]) == ["a", "b", "c"]
    monkeypatch.setattr(m, "EXACT_ROOMS", 0)
    assert m.best_order(weights, ["c", "b", "a"]) == ["a", "b", "c"]


def test_only_assertions_of_a_release_prove_an_invariant(found: dict[str, Any]) -> None:
    assert found["invariants"] == {"listed": 4, "asserted": [1, 5], "judged": [6], "neither": [4]}
    assert (found["assertions"]["release"], found["assertions"]["debug"]) == (1, 1)


def test_planted_bugs_are_counted_where_they_bite(found: dict[str, Any]) -> None:
    assert found["planted"] == {"sites": 2, "lines": 1, "list lines": 8}


def test_hooks_of_faults_are_sites_as_well(tree: Path) -> None:
    source = tree / "crates/forebay-core/src"
    (source / "fault.rs").write_text("pub fn skips_checksum() -> bool {\n    false\n}\n")
    engine = source / "engine.rs"
    engine.write_text(engine.read_text().replace("self.planted(PlantedBug::Other)", "fault::skips_checksum()"))
    engine.write_text(engine.read_text().replace("self.planted(Planted", "fault::planted(Planted"))
    assert m.measured(tree)["planted"] == {"sites": 2, "lines": 1, "list lines": 8 + 3}


def test_words_are_no_dashes(found: dict[str, Any]) -> None:
    assert found["words"] == {"docs": 4, "README": 3, "ARCHITECTURE": 16}


def test_the_limits_name_what_breaks_them(found: dict[str, Any]) -> None:
    assert [one.split(":")[0] for one in m.complaints(found)] == [
        "3 fields of Engine are open",
        "Engine has 3 methods",
        "no assertion names I4, and no line `Judged by the simulator",
    ]


def test_the_table_fits_a_terminal(
    tree: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tree / "other.json"
    other.write_text(json.dumps(found))
    for arguments in ([], ["--against", str(other)]):
        monkeypatch.setattr(sys, "argv", ["structure", str(tree), *arguments])
        assert m.main() == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("open fields of Engine") for line in lines)

"""The Java programs: how they are built and spoken to, and what the client of messages measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fake_nbd import FUA, FakeNbd, served
from requirements_java import need_java

from forebay_lab import java
from forebay_lab.experiment import Lies, Refused, Work
from forebay_lab.ledger import Ledger, started


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with Ledger(tmp_path / "ledger") as ledger:
        yield Work(tmp_path, tmp_path, ledger, lambda _: None)


def load(uri: str, **options: int) -> list[str]:
    return java.command("echo", "Load", {"target": uri, "export": "v", "connections": 1, "size": 48, **options})


def test_every_change_of_a_source_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "echo/src/main/java/A.java"
    source.parent.mkdir(parents=True)
    (tmp_path / "pom.xml").write_text("<project/>")
    source.write_text("class A {}")
    before = java.fingerprint(tmp_path)
    assert java.fingerprint(tmp_path) == before
    source.write_text("class A { }")
    changed = java.fingerprint(tmp_path)
    (tmp_path / "pom.xml").write_text("<project></project>")
    assert len({before, changed, java.fingerprint(tmp_path)}) == 3


def test_a_build_that_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has removed what there was: that the sources are as before does not help."""
    monkeypatch.setattr(java, "HOME", tmp_path / "home")
    monkeypatch.setattr(java, "TARGET", tmp_path / "target")
    (tmp_path / "home").mkdir()
    made: list[Sequence[str]] = []

    def succeed(words: Sequence[str], *, limit_s: float) -> str:
        del limit_s
        made.append(words)
        return ""

    def fail(words: Sequence[str], *, limit_s: float) -> str:
        raise Refused(f"{words} ended with 1 within {limit_s} s")

    monkeypatch.setattr(java, "run", succeed)
    java.build()
    java.build()
    assert len(made) == 1
    (tmp_path / "home/pom.xml").write_text("<broken")
    monkeypatch.setattr(java, "run", fail)
    with pytest.raises(Refused):
        java.build()
    (tmp_path / "home/pom.xml").unlink()
    monkeypatch.setattr(java, "run", succeed)
    java.build()
    assert len(made) == 2


def test_versions_are_those_of_the_build() -> None:
    assert java.version("echo", "kryonet")[0].isdigit()
    assert java.version("echo", "nothing") == "of unknown version"


def test_answers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("stack trace")
    assert java.parse('{"messages": 3, "mean_us": null}', "Load", log) == {"messages": 3, "mean_us": None}
    with pytest.raises(Lies, match="not what was sent"):
        java.parse('{"wrong": "the echo is not what was sent"}', "Load", log)
    with pytest.raises(Refused, match="stack trace"):
        java.parse('{"error": "IOException"}', "Load", log)
    with pytest.raises(Refused, match="answers"):
        java.parse("Picked up JAVA_TOOL_OPTIONS", "Load", log)


def test_what_waits_for_its_turn_counts_from_when_it_was_due(work: Work) -> None:
    """20 ms for a message, 100 of them a second: they wait 250 ms on average, though each is answered after 20 ms."""
    need_java()
    with (
        served(FakeNbd(wait_s=0.02), work.folder / "s") as uri,
        java.program(load(uri), "load", work) as program,
    ):
        closed = program.ask({"rate": 0, "warm": 0, "seconds": 0.5}, 30)
        pushed = program.ask({"rate": 100, "warm": 0, "seconds": 1}, 60)
    assert float(pushed["mean_us"] or 0) > 100_000
    assert float(pushed["messages"] or 0) > float(pushed["per_s"] or 0)
    assert float(closed["p50_us"] or 0) >= 20_000


def test_messages_are_read_back(work: Work) -> None:
    need_java()
    fake = FakeNbd()
    with served(fake, work.folder / "s") as uri, java.program(load(uri), "load", work) as program:
        sent = program.ask({"rate": 0, "warm": 0, "seconds": 0.1}, 30)
        assert float(program.ask({"verify": 5}, 30)["verified"] or 0) == min(5, float(sent["messages"] or 0))
        fake.lies = True
        with pytest.raises(Lies, match="not what was written"):
            program.ask({"verify": 5}, 30)
    assert set(fake.flags) == {0}


def test_durable_messages_carry_fua(work: Work) -> None:
    need_java()
    fake = FakeNbd()
    with served(fake, work.folder / "s") as uri, java.program(load(uri, fua=1), "load", work) as program:
        program.ask({"rate": 0, "warm": 0, "seconds": 0.1}, 30)
    assert set(fake.flags) == {FUA}


def test_a_program_is_noted_and_ended(work: Work) -> None:
    need_java()
    with served(FakeNbd(), work.folder / "s") as uri, java.program(load(uri), "load", work) as program:
        noted = [entry for entry in work.ledger.entries if entry.kind == "process"]
        assert [entry.pid for entry in noted] == [program.child.pid]
        assert started(program.child.pid) == noted[0].started
    assert program.child.returncode is not None
    assert work.ledger.entries == []


def test_a_server_that_is_gone_is_refused(work: Work) -> None:
    need_java()
    with (
        pytest.raises(Refused, match=r"Load"),
        java.program(load(f"unix:{work.folder}/nothing"), "load", work),
    ):
        pass

"""A run in a document: between its lines, the rest untouched, the same figures as the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import Counting, Silent

from forebay_lab import docs, runner, store
from forebay_lab.experiment import Refused, Scale


def test_only_what_is_between_the_lines_changes(tmp_path: Path) -> None:
    experiment = Counting()
    run = store.begin(tmp_path / "runs", "counting", Scale.QUICK, experiment.rows(Scale.QUICK), {"cores": "2"}, {})
    runner.go(experiment, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 1), Silent())
    document = tmp_path / "evaluation.md"
    with pytest.raises(Refused, match="no lines"):
        docs.write(experiment, run, document)
    assert not (tmp_path / "img").exists()
    document.write_text("before\n<!-- lab counting: begin -->\nold\n<!-- lab counting: end -->\nafter\n")
    docs.write(experiment, run, document)
    text = document.read_text()
    assert text.startswith("before\n<!--") and text.endswith("-->\nafter\n") and "old" not in text
    assert "| b   | 2 |" in text and "(img/lab-counting-n.svg)" in text and "cores: 2" in text
    assert "Published" not in text, "a quick run is not compared with published figures"
    assert docs.has_place(run, document) and not docs.has_place(run, tmp_path / "other.md")
    drawn = (tmp_path / "img/lab-counting-n.svg").read_bytes()
    docs.write(experiment, run, document)
    below = tmp_path / "results/evaluation.md"
    below.parent.mkdir()
    below.write_text(text)
    docs.write(experiment, run, below)
    assert "(../img/lab-counting-n.svg)" in below.read_text() and not (below.parent / "img").exists()
    assert document.read_text() == text and (tmp_path / "img/lab-counting-n.svg").read_bytes() == drawn

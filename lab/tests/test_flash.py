"""The experiment on the model of flash devices: what it makes of the output of `flash-bench`, and a run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from samples import Silent

from forebay_lab import binaries, cards, flash, flash_bench, report, runner, store
from forebay_lab.experiment import Binary, Lies, Results, Row, Scale, Work

BUILT = binaries.path(Binary.FLASH_BENCH)


def card_lines(model: dict[str, float]) -> str:
    """The output of a sweep whose model is so many times what was published."""
    lines = []
    for letter, times in model.items():
        published = cards.CARDS[cards.name(letter)].tolist()
        for used, was in zip(cards.FILLS, published, strict=True):
            line = {"kind": "card", "card": letter, "used_pct": used, "model_mib_s": was * times}
            line |= {"published_mib_s": was, "model_of_emptiest": was / published[0]}
            line |= {"published_of_emptiest": was / published[0], "write_amplification": 1.5, "rms_error_of_card": 0.1}
            lines.append(json.dumps(line))
    return "\n".join(lines)


def layout_lines(total: float) -> str:
    """The output for one layout: on each card, collected in two ways."""
    lines = []
    for letter in flash.LETTERS:
        for collection in ("greedy", "cost-benefit"):
            wa = total if collection == "greedy" else total + 1
            line = {"kind": "layout", "workload": "uniform-4k", "layout": "x", "card": letter, "collection": collection}
            line |= {"past_cache_pct": 0.0, "cache_wa": 1.0, "flash_wa": wa, "total_wa": wa}
            line |= {"life_user_tb": 1200 / wa, "speed_of_empty": 1 / wa}
            lines.append(json.dumps(line))
    return "\n".join(lines)


def results(layouts: dict[str, float]) -> Results:
    """A run of the cards and of these layouts."""
    experiment = flash.Flash()
    rows = [row for row in experiment.rows(Scale.QUICK) if row.name == "cards" or row.name in layouts]
    texts = {name: layout_lines(total) for name, total in layouts.items()} | {"cards": card_lines({"D": 1, "T": 1})}
    samples = {name: flash_bench.parse(text) for name, text in texts.items()}
    made = {row.name: flash.of_cards if row.name == "cards" else flash.of_layout for row in rows}
    return Results(rows, samples, {name: made[name](frame) for name, frame in samples.items()})


def test_nothing_and_several_things_are_lies() -> None:
    assert len(flash_bench.parse(layout_lines(2))) == 4
    with pytest.raises(Lies):
        flash_bench.parse("")
    with pytest.raises(Lies):
        flash_bench.parse(f"{layout_lines(2)}\n{card_lines({'D': 1})}")


def test_a_model_of_other_figures_is_a_lie() -> None:
    frame = flash_bench.parse(card_lines({"D": 1.1, "T": 1}))
    assert flash.of_cards(frame) == {"rms_error_D": 0.1, "fall_D": 11.06, "rms_error_T": 0.1, "fall_T": 2.37}
    with pytest.raises(Lies, match="card D"):
        flash.of_cards(frame.replace(1095, 1096))


def test_lives_are_told_of_forebay() -> None:
    ours, theirs = "uniform-4k-quarter-forebay", "uniform-4k-quarter-flashcache"
    table = flash.Flash().table(results({ours: 1.5, theirs: 6.0}))
    assert table["row"].tolist() == ["cards at 100 %", "cards, published", ours, ours, theirs, theirs]
    assert table["collection"].tolist() == ["greedy", "-", *["greedy", "cost-benefit"] * 2]
    assert table["life ratio D"].tolist() == ["-", "-", 1.0, 1.0, 0.25, 0.36]
    assert table["WA T"].tolist() == [1.5, "-", 1.5, 2.5, 6.0, 7.0]
    assert table["speed D"].tolist()[:2] == [99 / 1095, 99 / 1095]
    without = flash.Flash().table(results({theirs: 6.0}))
    assert set(without["life ratio T"]) == {"-"}, "there is nothing to compare with"


def test_pictures_of_what_there_is() -> None:
    experiment = flash.Flash()
    full = experiment.pictures(results({"uniform-4k-quarter-forebay": 1.5, "uniform-4k-quarter-flashcache": 6.0}))
    assert [picture.name for picture in full] == ["cards", "layouts-D-quarter", "layouts-T-quarter"]
    assert [picture.name for picture in experiment.pictures(results({}))] == ["cards"]
    assert experiment.pictures(Results([], {}, {})) == []


def test_the_binary_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "flash-bench"
    script.write_text("#!/bin/sh\necho no room >&2\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setenv("FLASH_BENCH", str(script))
    experiment = flash.Flash()
    run = store.begin(tmp_path / "runs", "flash", Scale.SMOKE, experiment.rows(Scale.SMOKE), {}, {})
    with pytest.raises(Lies, match="no room"):
        runner.go(experiment, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 3), Silent())


def test_a_busy_machine_does_not_disturb_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Row] = []

    class Told(flash.Flash):
        def measure(self, row: Row, work: Work) -> flash.Measured:
            del work
            calls.append(row)
            frame = pd.DataFrame({"x": [1]})
            return flash.Measured(frame, {})

    monkeypatch.setattr(runner, "DISTURBED", -1.0)
    experiment = Told()
    run = store.begin(tmp_path / "runs", "flash", Scale.QUICK, experiment.rows(Scale.QUICK)[:2], {}, {})
    runner.go(experiment, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 3), Silent())
    assert len(calls) == 2 and not run.kept["cards"].disturbed
    assert store.load(run.path).rows == run.rows


@pytest.mark.skipif(not BUILT.exists(), reason="flash-bench is not built: lab run flash does it")
def test_a_smoke_run_measures_every_row(tmp_path: Path) -> None:
    experiment = flash.Flash()
    rows = [
        row for row in experiment.rows(Scale.SMOKE) if row.name == "cards" or row.name.startswith("uniform-4k-quarter")
    ]
    run = store.begin(tmp_path / "runs", "flash", Scale.SMOKE, rows, {}, {})
    runner.go(experiment, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 3), Silent())
    assert run.missing == []
    ours, theirs = (run.kept[f"uniform-4k-quarter-{layout}"].summary for layout in ("forebay", "flashcache"))
    assert float(ours["flash_wa_D"]) < 1.2 < float(theirs["flash_wa_D"])
    assert len(experiment.table(run.results())) == 2 + 2 * len(flash.LAYOUTS)
    assert "data:image/png;base64," in report.write(experiment, run).read_text()

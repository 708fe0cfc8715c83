"""The latency experiment: its grid, its table, and a run of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from requirements_java import need_java
from samples import Silent

import harness
from forebay_lab import latency, latency_targets, runner, store
from forebay_lab.experiment import Results, Row, Scale

EXPERIMENT = latency.Latency()


def test_the_grid_of_a_full_run() -> None:
    rows = EXPERIMENT.rows(Scale.FULL)
    assert len({row.name for row in rows}) == len(rows) == 8 * 5 * 4
    loaded = [row for row in rows if row.parameters["loads"]]
    assert {row.parameters["size"] for row in loaded} == {48, 3216}
    assert {row.parameters["connections"] for row in loaded} == {1, 10, 50, 100}


def test_every_row_has_its_peer() -> None:
    for scale in Scale:
        rows = {row.name for row in EXPERIMENT.rows(scale)}
        for row in EXPERIMENT.rows(scale):
            name = f"kryonet-{int(row.parameters['size']):05}-{int(row.parameters['connections']):03}"
            assert name in rows


def test_messages_are_rounded_up_where_sectors_are_stored() -> None:
    sent = {
        target: [latency_targets.Point(latency_targets.TARGETS[target], size, 1).sent for size in latency.SIZES]
        for target in ("kryonet", "forebay-unix")
    }
    assert sent["kryonet"] == [48, 512, 3216, 4096, 16384]
    assert sent["forebay-unix"] == [512, 512, 3584, 4096, 16384]


def results() -> Results:
    rows, samples, summaries = [], {}, {}
    for target, per_s, mean_us, p99_us in (("kryonet", 1000, 200.0, 0.0), ("forebay-unix", 2000, 100.0, 400.0)):
        name = f"{target}-00048-001"
        rows.append(Row(name, 1, {"target": target, "size": 48, "connections": 1, "loads": "10 90"}))
        spread = {"mean_us": mean_us, "p50_us": mean_us / 2, "p99_us": p99_us, "max_us": p99_us}
        lines = [{"load_percent": load, "per_s": per_s, **spread} for load in (0, 10)]
        samples[name] = pd.DataFrame(
            [*lines, {"load_percent": 90, "per_s": per_s, **spread, "p50_us": 5 * mean_us / 2}]
        )
        summaries[name] = {"sent_bytes": 48, "per_s": per_s, **spread}
    return Results(rows, samples, summaries)


def test_ratios_come_first() -> None:
    table = EXPERIMENT.table(results()).set_index("row")
    forebay = table.loc["forebay-unix-00048-001"]
    assert list(table.columns)[:4] == [f"{what} / Kryonet" for what in ("rate", "mean", "median", "p99")]
    assert forebay["rate / Kryonet"] == "2.00"
    assert forebay["mean / Kryonet"] == "0.50"
    # Nothing is divided by a percentile of 0.
    assert forebay["p99 / Kryonet"] == "-"
    assert forebay["us: mean, median, p99"] == "100, 50, 400"
    assert (forebay["at load"], forebay["median, loaded / idle"]) == ("90 %", "5.0")


def test_drawings() -> None:
    assert [picture.name for picture in EXPERIMENT.pictures(results())] == ["load-00048-001"]


def test_a_smoke_run(tmp_path: Path) -> None:
    need_java()
    if not harness.FOREBAY.exists():
        pytest.skip(f"there is no {harness.FOREBAY}: cargo build --release")
    wanted = {f"{target}-00048-002" for target in ("kryonet", "forebay-unix", "forebay-fio", "null-tcp")}
    rows = [row for row in EXPERIMENT.rows(Scale.SMOKE) if row.name in wanted]
    run = store.begin(tmp_path / "runs", "latency", Scale.SMOKE, rows, {}, {})
    runner.go(EXPERIMENT, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 1), Silent())
    for row in rows:
        samples = run.results().samples[row.name]
        assert samples["load_percent"].tolist() == [0, 50]
        assert (samples["messages"] > 0).all()
    assert float(run.kept["kryonet-00048-002"].summary["verified"]) > 0
    assert float(run.kept["forebay-unix-00048-002"].summary["verified"]) > 0
    assert len(EXPERIMENT.table(run.results())) == 4

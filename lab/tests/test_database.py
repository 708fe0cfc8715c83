"""What the clients of the databases print, what is made of it, and that wrong data is noticed."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest

from forebay_lab import binaries, database, mariadb, observe, oltp, oltp_cards, stack, sysbench, tpcc
from forebay_lab.database import compare
from forebay_lab.experiment import Binary, Lies, Refused, Results, Scale, Work
from forebay_lab.ledger import Ledger
from forebay_lab.mariadb import Database
from forebay_lab.stack import Backend, Store

SYSBENCH = "[ 10s ] thds: 4 tps: 169.50 qps: 3390.00 (r/w/o: 2373.00/678.00/339.00) lat (ms,95%): 50.11 err/s: 0.10"
TPCC = (
    "[Current] NEW_ORDER - Takes(s): 10.0, Count: 1961, TPM: 11765.0, Sum(ms): 17452.0, Avg(ms): 8.9, 50th(ms): 8.8, "
    "90th(ms): 12.1, 95th(ms): 14.2, 99th(ms): 28.3, 99.9th(ms): 60.0, Max(ms): 71.3"
)


def test_a_line_of_sysbench() -> None:
    found = sysbench.parse(SYSBENCH + " reconn/s: 0.00\n")
    assert found == {
        "t_s": 10,
        "tps": 169.5,
        "row_reads_s": 2373,
        "row_writes_s": 678,
        "p95_ms": 50.11,
        "errors_s": 0.1,
    }
    assert sysbench.parse("Threads started!") is None
    assert (
        sysbench.transactions(["SQL statistics:", "    transactions:                        1234   (123.4 per sec.)"])
        == 1234
    )
    # It prints them twice if it drops what came first, and counts anew.
    assert (
        sysbench.transactions(
            ["    transactions:    1000   (100.0 per sec.)", "    transactions:    200 (20 per sec.)"]
        )
        == 1200
    )
    with pytest.raises(Lies):
        sysbench.transactions(["FATAL: no"])


def test_percentiles_of_the_histogram() -> None:
    bars = ["       1.500 |****  90", "       2.000 |      8", "      10.000 |*     1", "     300.250 |      1"]
    printed = ["[ 1s ] thds: 1", "       7.000 |*   99999", "Latency histogram (values are in milliseconds)", *bars, ""]
    found = [sysbench.percentile(printed, share) for share in (0.5, 0.95, 0.99, 1)]
    assert found == [1.5, 2, 10, 300.25]
    assert sysbench.percentile(["no histogram"], 0.99) == 0


def test_a_line_of_go_tpc() -> None:
    assert tpcc.parse(TPCC) == {"notpm": 11765, "orders": 1961, "mean_ms": 8.9, "p95_ms": 14.2, "p99_ms": 28.3}
    assert tpcc.parse(TPCC.replace("NEW_ORDER", "PAYMENT")) is None
    assert tpcc.parse(TPCC.replace("[Current]", "[Summary]")) is None


def test_an_interval_without_an_order_is_one_of_none() -> None:
    length = tpcc.LENGTHS[Scale.QUICK]
    every, last = length.interval_s, length.run_s // length.interval_s
    printed = [(1, 0.2), (2, 0.2), (4, 0.4), (last - 1, 0.1)]
    frame = pd.DataFrame(
        {"notpm": [100.0] * 4, "orders": [3.0] * 4, "p95_ms": [5.0] * 4, "p99_ms": [9.0] * 4}
        | {"clock_s": [every * number + late for number, late in printed]}
    )
    whole = tpcc.every_interval(frame, length)
    assert whole["t_s"].tolist() == [every * number for number in range(1, last)]
    assert whole["notpm"].tolist() == [100 if number in (1, 2, 4, last - 1) else 0 for number in range(1, last)]
    assert tpcc.summarise(whole, 0)["p95_ms"] == 5, "there is no latency where nothing was answered"
    with pytest.raises(Refused):
        tpcc.summarise(tpcc.every_interval(frame[:0], length), 0)
    line = "[2026-01-01 00:00:00] execute run failed, err Error 1213: Deadlock found"
    assert tpcc.FAILED.search(line) and not tpcc.FAILED.search(TPCC)


def samples(tps: list[float]) -> pd.DataFrame:
    columns = ("p95_ms", *observe.MEANS)
    return pd.DataFrame({"t_s": [10 * (at + 1) for at in range(len(tps))], "tps": tps, **dict.fromkeys(columns, 1.0)})


def test_the_warm_up_is_dropped() -> None:
    found = oltp.summarise(samples([1, 1, 100, 100, 130, 70]), 20)
    assert (found["tps"], found["tps_min"]) == (100, 70)
    assert found["cv"] == pytest.approx((2 * 30**2 / 4) ** 0.5 / 100, abs=1e-3)


def test_ratios_are_to_the_rows_that_are_there() -> None:
    experiment = oltp.Oltp()
    rows = [row for row in experiment.rows(Scale.QUICK) if row.name in ("raw", "flashcache-50", "forebay-time")]
    speeds = {"raw": 200.0, "flashcache-50": 40.0, "forebay-time": 160.0}
    frames = {name: samples([speed]) for name, speed in speeds.items()}
    results = Results(rows, frames, {name: oltp.summarise(frame, 0) for name, frame in frames.items()})
    table = experiment.table(results).set_index("row")
    assert table.loc["Forebay, time-based", ["to FlashCache", "to raw", "to disk"]].tolist() == ["4.00", "0.80", "-"]
    assert {picture.name for picture in experiment.pictures(results)} >= {"tps", "p95_ms", "iowait"}


def test_rows_of_a_group_are_compared_with_each_other() -> None:
    experiment = oltp.Oltp()
    rows = [row for row in experiment.rows(Scale.FULL) if row.name in ("raw", "raw-4x", "flashcache-4x", "forebay-4x")]
    speeds = {"raw": 100.0, "raw-4x": 400.0, "flashcache-4x": 100.0, "forebay-4x": 300.0}
    frames = {name: samples([speed]) for name, speed in speeds.items()}
    frames["forebay-4x"]["hits"] = 0.5
    results = Results(rows, frames, {name: oltp.summarise(frame, 0) for name, frame in frames.items()})
    table = experiment.table(results).set_index("row")
    ours = next(line for name, line in table.iterrows() if str(name).startswith("Forebay"))
    assert (ours["to FlashCache"], ours["to raw"]) == ("3.00", "0.75")
    details = experiment.details(results).set_index("row")["hits"]
    assert details[ours.name] == "50.0%" and details["raw flash"] == "-"


def test_every_place_of_the_image_has_its_own_in_the_cache() -> None:
    """Else the sets of the FlashCache model lose what a cache of this size should hold."""
    for length in (*oltp.LENGTHS.values(), *(tpcc.LENGTHS[scale] for scale in (Scale.FULL,))):
        assert length.image_mib < length.cache_mib * 0.99


def test_tables_that_differ_are_lies() -> None:
    compare({"a": "1", "b": "2"}, {"a": "1", "b": "2"})
    with pytest.raises(Lies, match="b"):
        compare({"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    with pytest.raises(Lies, match="b"):
        compare({"a": "1", "b": "2"}, {"a": "1"})


def fill(server: Database) -> None:
    mariadb.create(server)
    columns = "id int primary key, text varchar(200)"
    server.ask(f"use lab; create table t ({columns}) select seq id, 'old' text from seq_1_to_999")


def update(server: Database, _: stack.Mounted) -> None:
    server.ask("update lab.t set text = repeat('new', 60)")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mariadbd"), reason="needs root and MariaDB")
@pytest.mark.skipif(not binaries.path(Binary.FOREBAY).exists(), reason="forebay is not built")
@pytest.mark.parametrize("lossy", [False, True])
def test_a_cache_that_loses_data_gets_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lossy: bool) -> None:
    """The verification itself is put to the test: without the last write-back the image lacks what the cache had."""
    if lossy:
        monkeypatch.setattr(database, "finish", lambda *_: None)
    with (
        pytest.raises(Lies) if lossy else nullcontext(),
        Ledger(tmp_path / "ledger") as ledger,
    ):
        work = Work(tmp_path, tmp_path, ledger, lambda _: None)
        backend = Backend(Store.FOREBAY, oltp.threshold(50), 256)
        content = database.Content("told", 384, "xfs", fill)
        database.measure(content, backend, mariadb.Options(16, 16), ["t"], work, update)


def test_only_what_was_written_is_read_beforehand(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 << 20)
        for at in (0, 5 << 20):
            os.pwrite(file.fileno(), b"x" * (1 << 20), at)
    assert list(stack.written_parts(image)) == [(0, 1 << 20), (5 << 20, 6 << 20)]


def test_every_row_has_its_own_name() -> None:
    for experiment in (oltp.Oltp(), oltp_cards.OltpCards(), tpcc.Tpcc()):
        for scale in Scale:
            names = [row.name for row in experiment.rows(scale)]
            assert names and len(names) == len(set(names))

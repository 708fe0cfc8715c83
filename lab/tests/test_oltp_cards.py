"""The database on cards: which rows there are, medians of runs, and what is made of what servers say."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from forebay_lab import binaries, oltp_cards, stack
from forebay_lab.experiment import Binary, Refused, Results, Row, Scale, Work
from forebay_lab.ledger import Ledger
from forebay_lab.oltp_cards import CHIPS, OltpCards
from forebay_lab.stack import Backend, Store, finish, format_image, mounted


def test_every_card_is_measured_once_before_any_is_measured_again() -> None:
    names = [row.name for row in OltpCards().rows(Scale.FULL)]
    assert names[0] == "raw" and len(names) == len(set(names)) == 1 + 3 * 2 * 4
    assert [name[-1] for name in names[1:]] == ["1"] * 8 + ["2"] * 8 + ["3"] * 8
    assert OltpCards(7).rows(Scale.QUICK)[1].parameters["card"] == "card-d:7"
    quick = OltpCards().rows(Scale.QUICK)
    assert len(quick) == 9 and quick[0].parameters["card"] == ""
    assert {row.parameters["card"] for row in quick[1:]} == {f"card-d:{CHIPS}", f"card-t:{CHIPS}"}


def results(speeds: dict[str, float]) -> Results:
    rows = [row for row in OltpCards().rows(Scale.FULL) if row.name in speeds]
    columns = ("cv", "tps_min", "all_p95_ms", "all_p99_ms", "of_flash", *dict(oltp_cards.oltp.DETAILS.values()))
    summaries = {name: dict.fromkeys(columns, 1.0) | {"tps": speed} for name, speed in speeds.items()}
    frame = pd.DataFrame({"t_s": [10.0, 20.0], "tps": [1.0, 2.0], "p95_ms": [3.0, 4.0]})
    return Results(rows, dict.fromkeys(speeds, frame), summaries)


def test_figures_are_medians_beside_those_of_the_same_card() -> None:
    found = results(
        {"raw": 500.0}
        | {f"d-flashcache-{run}": speed for run, speed in ((1, 10.0), (2, 20.0), (3, 90.0))}
        | {f"d-forebay-time-{run}": speed for run, speed in ((1, 50.0), (2, 60.0), (3, 70.0))}
        | {"t-forebay-time-1": 100.0, "d-alone-1": 30.0}
    )
    table = OltpCards().table(found).set_index("row")
    line = table.loc[f"card-d:{CHIPS} Forebay, time-based"]
    assert (line["transactions/s"], line["of runs"]) == (60, "50.0, 60.0, 70.0")
    assert (line["to FlashCache"], line["to the card alone"]) == ("3.00", "2.00")
    other = table.loc[f"card-t:{CHIPS} Forebay, time-based"]
    assert (other["to FlashCache"], other["transactions/s"]) == ("-", 100), "cards are not mixed"
    details = OltpCards().details(found).set_index("row")
    assert details.loc["flash, no card", "published reads and writes to these"] == "17500.00"
    assert details.loc["flash, no card", "pages on flash for each written"] == "-"
    ours = f"card-t:{CHIPS} Forebay, time-based"
    assert details.loc[ours].iloc[-2:].tolist() == ["1.00", "-"], "only what no card limits says how many chips"
    assert {picture.name for picture in OltpCards().pictures(found)} >= {"d-tps", "t-p95_ms"}


def test_what_the_card_did_is_read_from_what_its_server_said(tmp_path: Path) -> None:
    (tmp_path / "after.log").write_text("ready: x\n")
    with pytest.raises(Refused, match="has said"):
        stack.card_amplification(tmp_path)
    said = "forebay: /a/b as card-d:5: 1000 pages written, 2500 moved, 7 blocks erased\n"
    (tmp_path / "forebay.log").write_text(said)
    assert stack.card_amplification(tmp_path) == 3.5


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices")
@pytest.mark.skipif(shutil.which("mkfs.xfs") is None, reason="there is no mkfs.xfs")
@pytest.mark.parametrize("store", [Store.PAST, Store.FOREBAY, Store.FLASHCACHE])
def test_each_store_is_served_on_a_card(tmp_path: Path, store: Store) -> None:
    binary = Binary.MODEL if store is Store.FLASHCACHE else Binary.FOREBAY
    if not binaries.path(binary).exists():
        pytest.skip(f"{binary} is not built")
    row, image = tmp_path / "row", tmp_path / "row/image"
    row.mkdir()
    content = b"written through the card" * 4096
    with Ledger(tmp_path / "ledger") as ledger:
        work = Work(row, tmp_path, ledger, lambda _: None)
        format_image(image, 384, "xfs", work)
        backend = Backend(store, cache_mib=256, card="card-t:2")
        with mounted(backend, image, work) as there:
            (there.path / "file").write_bytes(content)
            os.sync()
        assert stack.card_amplification(row) >= 1
        finish(backend, image, work)
        with mounted(Backend(Store.RAW), image, work) as there:
            assert (there.path / "file").read_bytes() == content


def test_rows_say_what_they_are_measured_with() -> None:
    row: Row = OltpCards().rows(Scale.QUICK)[4]
    assert row.name == "d-forebay-time-1" and "flush_period=10s" in str(row.parameters["options"])

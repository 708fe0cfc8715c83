"""Tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from samples import results, sample

from comparison import report
from comparison.model import FOREBAY, RAW

CASE = "random read 4k, depth 1 x 1"


def rows(text: str) -> list[list[str]]:
    """Cells of a table without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_the_first_target_of_the_stage_is_the_base_whichever_ran_first() -> None:
    found = results(sample("hits", CASE, FOREBAY, 500), sample("hits", CASE, RAW, 1000))
    found.order["hits"] = [RAW, FOREBAY]
    raw, forebay = rows(report.group_table(found, "hits"))
    assert (raw[1], raw[3]) == ("raw", "")
    assert (forebay[1], forebay[2], forebay[3]) == ("forebay", "500 IOPS (500-500)", "0.50")


def test_cost_disturbance_and_hits_are_shown() -> None:
    ours = sample(
        "hits", CASE, FOREBAY, disturbed=True, counters={"read_hit_blocks": 3, "read_miss_blocks": 1}, max_us=7000
    )
    (row,) = rows(report.group_table(results(ours), "hits"))
    assert row[5:] == ["7.00", "10.0", "1/1", "0.750"]


def test_a_file_has_no_server_and_so_no_cost() -> None:
    (row,) = rows(report.group_table(results(sample("hits", CASE, RAW, has_server=False)), "hits"))
    assert row[6] == ""


def test_everything_is_in_the_markdown_and_the_json(tmp_path: Path) -> None:
    found = results(sample("hits", CASE, RAW, p50_us=50), sample("hits", CASE, FOREBAY, p50_us=60))
    text = report.markdown(found, {"kernel": "6"}, {"hits": "hits: reads"})
    assert "### hits: reads" in text
    assert "PASS" in text
    report.write_json(tmp_path / "out.json", found, {"kernel": "6"})
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["about"] == {"kernel": "6"}
    assert read["targets"] == {"hits": [RAW, FOREBAY]}
    assert [each["value"] for each in read["samples"]] == [1000, 1000]
    assert read["samples"][1]["result"]["read"]["p50_us"] == 60
    assert any("p50 over raw" in goal["what"] for goal in read["goals"])


def test_a_document_keeps_what_is_around_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        report.write_markdown(document, "new\n")
        assert document.read_text() == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"


def test_a_file_without_both_markers_is_replaced(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    for old in (None, "anything\n", f"{report.END}\n{report.BEGIN}\n"):
        if old is not None:
            document.write_text(old)
        report.write_markdown(document, "new\n")
        assert document.read_text() == "new\n"

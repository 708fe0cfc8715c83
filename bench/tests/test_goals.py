"""Goals: what passes, what misses, and what cannot be judged."""

from __future__ import annotations

import pytest
from samples import results, sample

from comparison.goals import Verdict, verdicts
from comparison.model import CROWDED, FOREBAY, RAW, Results
from comparison.scale import DEFAULT, FULL, QUICK, Scale
from comparison.stages import GROUPS

HITS = "random read 4k, depth 32 x 1"


def one(found: Results, what: str) -> Verdict:
    """The verdict whose name contains `what`."""
    matching = [verdict for verdict in verdicts(found) if what in verdict.what]
    assert len(matching) == 1, [verdict.what for verdict in verdicts(found)]
    return matching[0]


def test_without_samples_there_is_nothing_to_judge() -> None:
    assert verdicts(Results()) == []


@pytest.mark.parametrize(("iops", "passed"), [(950, True), (949, False)])
def test_hits_are_judged_against_the_raw_device(iops: float, passed: bool) -> None:
    verdict = one(results(sample("hits", HITS, RAW), sample("hits", HITS, FOREBAY, iops)), "forebay / raw")
    assert verdict.passed is passed
    assert verdict.note == "no null volume"


def test_hits_are_judged_against_the_null_volume_if_that_is_slower() -> None:
    found = results(
        sample("hits", HITS, RAW, 1000), sample("hits", HITS, FOREBAY, 500), sample("hits", HITS, "null volume", 500)
    )
    verdict = one(found, "forebay / null volume")
    assert verdict.passed
    assert verdict.note == ""


def test_disturbed_runs_are_counted() -> None:
    found = results(sample("hits", HITS, RAW, disturbed=True), sample("hits", HITS, FOREBAY))
    assert "1 of 2 runs disturbed" in one(found, "forebay / raw").note


@pytest.mark.parametrize(
    ("second", "note"), [(670, ""), (1500, ""), (600, "varied by 1.67"), (0, "varied by everything")]
)
def test_a_base_that_is_not_steady_is_remarked(second: float, note: str) -> None:
    case = "random write 4k, depth 32 x 1"
    found = results(
        sample("writes", case, RAW, 1000),
        sample("writes", case, RAW, second, round=2),
        sample("writes", case, FOREBAY, 2000),
    )
    remark = one(found, "forebay / raw").note
    assert note in remark
    assert bool(note) == bool(remark)


@pytest.mark.parametrize(("p50_us", "passed"), [(125, True), (126, False)])
def test_latency_that_is_added_to_a_read(p50_us: float, passed: bool) -> None:
    case = "random read 4k, depth 1 x 1"
    found = results(sample("hits", case, RAW, p50_us=100), sample("hits", case, FOREBAY, p50_us=p50_us))
    assert one(found, "p50 over raw").passed is passed


def test_four_connections_have_a_higher_goal_for_writes() -> None:
    found = results(
        *(sample("writes", f"random write 4k, depth 32 x {n}", RAW, 100) for n in (1, 4)),
        *(sample("writes", f"random write 4k, depth 32 x {n}", FOREBAY, 150) for n in (1, 4)),
    )
    assert one(found, "32 x 1").passed
    assert not one(found, "32 x 4").passed


@pytest.mark.parametrize(("iops", "passed"), [(770, True), (760, False)])
def test_a_flush_is_judged_by_time_so_less_is_better(iops: float, passed: bool) -> None:
    case = "write 4k + flush, depth 1 x 1"
    found = results(sample("flush", case, RAW, 1000), sample("flush", case, FOREBAY, iops))
    assert one(found, "write + FLUSH").passed is passed


def test_amplification_is_of_the_worst_round_and_counts_fills_as_stored() -> None:
    case = "uniform overwrites of a third of the cache"
    good = {"written_bytes": 4096, "filled_blocks": 1, "cache_written_bytes": 8192}
    bad = {"written_bytes": 8192, "filled_blocks": 0, "cache_written_bytes": 10_000}
    one_round = sample("amplification", case, FOREBAY, counters=good)
    assert one(results(one_round), "amplification").reached == "1.000"
    verdict = one(results(one_round, sample("amplification", case, FOREBAY, counters=bad)), "amplification")
    assert (verdict.reached, verdict.passed) == ("1.221", False)


@pytest.mark.parametrize(("loaded", "passed"), [(300, True), (301, False)])
def test_full_load_is_compared_with_one_connection_at_the_same_depth(loaded: float, passed: bool) -> None:
    found = results(
        sample("latency", "random write 4k, depth 8 x 1", FOREBAY, p50_us=100),
        sample("latency", "random write 4k, depth 8 x 4", FOREBAY, p50_us=loaded),
        sample("latency", "random write 4k, depth 1 x 4", FOREBAY, p50_us=9000),
    )
    assert one(found, "p50 of 4 connections / of 1").passed is passed


@pytest.mark.parametrize(("crowded", "passed"), [(950, True), (940, False)])
def test_idle_connections_may_cost_a_busy_one_a_twentieth(crowded: float, passed: bool) -> None:
    found = results(sample("crowd", HITS, FOREBAY, 1000), sample("crowd", HITS, CROWDED, crowded))
    assert one(found, CROWDED).passed is passed


def test_the_longest_stall_is_ours_and_not_of_a_peer_or_a_slow_disk() -> None:
    found = results(
        sample("hits", HITS, RAW, max_us=500_000),
        sample("hits", HITS, "nbdkit file", max_us=900_000),
        sample("hits", HITS, FOREBAY, max_us=50_000),
        sample("mix", "mix", FOREBAY, max_us=2_000_000, flash=False),
        sample("states", "random write 4k, depth 32 x 1", "dirty", max_us=101_000),
    )
    verdict = one(found, "longest stall")
    assert not verdict.passed
    assert verdict.reached == "101 ms"
    assert "dirty" in verdict.note
    assert "raw: 500 ms" in verdict.note


def test_an_idle_daemon_is_judged_by_its_processor_time() -> None:
    found = results(sample("idle", "idle", FOREBAY, result=None, server_cpu_s=0.3, elapsed_s=20.0))
    assert one(found, "idle").reached == "1.50 %"
    assert not one(found, "idle").passed


@pytest.mark.parametrize("scale", [QUICK, DEFAULT, FULL], ids=lambda scale: scale.name)
def test_the_names_that_goals_look_for_are_those_of_the_stages(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that is renamed in one place only would make its goal disappear."""
    monkeypatch.setattr("comparison.servers.has_null_volume", lambda: True)
    counters = {"written_bytes": 4096, "filled_blocks": 0, "cache_written_bytes": 4096}
    found = results(
        *(
            sample(stage.group, case.name, target, flash=case.flash, counters=counters)
            for group in GROUPS.values()
            for stage in group.stages(scale)
            for case, target in stage.planned(1)
        )
    )
    depths, crowds = (2, 2) if scale is QUICK else (6, 4)
    expected = {"hits": 2, "added": 1, "writes": 2, "full": 1, "null": 1, "flush": 1, "mix": 2, "idle": 1, "stall": 1}
    assert len(verdicts(found)) == sum(expected.values()) + 3 + depths + crowds

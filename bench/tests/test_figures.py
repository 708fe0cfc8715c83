"""Arithmetic of the comparison."""

from __future__ import annotations

import pytest

from comparison import figures
from comparison.figures import Spread


def test_the_median_is_not_the_mean_and_the_spread_is_of_all_runs() -> None:
    assert Spread.of([1, 100, 3]) == Spread(median=3, low=1, high=100)
    assert Spread.of([2, 4]).median == 3


def test_no_runs_have_no_median() -> None:
    with pytest.raises(ValueError, match="no runs"):
        Spread.of([])


def test_ratios_are_taken_within_a_round() -> None:
    # The machine was half as fast in the second round: the ratio of medians would be the same, its spread would not.
    assert figures.paired_ratio([200, 100, 220], [100, 50, 100]) == Spread(2.0, 2.0, 2.2)


def test_rounds_without_a_partner_or_with_nothing_below_are_left_out() -> None:
    assert figures.paired_ratio([10, 20, 30], [5, 0]) == Spread(2.0, 2.0, 2.0)
    assert figures.paired_ratio([10], []) is None
    assert figures.paired_ratio([10], [0]) is None


def test_cost_is_per_request_in_microseconds() -> None:
    assert figures.per_request_us(0.5, 100_000) == 5.0
    assert figures.per_request_us(0.5, 0) is None


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (9.99, "9.99"), (12.34, "12.3"), (99.96, "100.0"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert figures.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(999, "999"), (12_345, "12.3k"), (1_500_000, "1.5M"), (0.5, "0.5")])
def test_spreads_are_short(value: float, text: str) -> None:
    assert figures.short(value) == text


def test_durations() -> None:
    assert figures.duration(125) == "2:05"
    assert figures.duration(-3) == "0:00"

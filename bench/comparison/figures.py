"""Arithmetic of the comparison: medians, spreads, ratios, and how they are written. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median of some runs, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        if not values:
            raise ValueError("no runs, no median")
        return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: float, theirs: float) -> float | None:
    """How many times theirs ours is; nothing if theirs is zero."""
    return ours / theirs if theirs else None


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Ratios round by round.

    What disturbs a machine for longer than one run disturbs both runs of a round, so this is steadier than the ratio of
    medians. Rounds are paired by their order; what has no partner is left out.
    """
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]
    return Spread.of(ratios) if ratios else None


def per_request_us(cpu_s: float, requests: int) -> float | None:
    """CPU time of each request in microseconds."""
    return cpu_s * 1e6 / requests if requests else None


def number(value: float) -> str:
    """Three significant digits, or whole and with separators from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def short(value: float) -> str:
    """For spreads: 12.3k rather than 12,345."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Minutes and seconds, as 2:05."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"

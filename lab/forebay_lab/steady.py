"""When a device, or a cache, has settled: as the solid state storage performance test specification defines it.

Over a window of five rounds the measure stays within 20 % of its mean, and the line fitted to it rises or falls by no
more than 10 % of the mean (SNIA PTS 2.0.2, section 2.1.24). A round here is an interval of samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUNDS = 5
EXCURSION = 0.20
SLOPE = 0.10


def is_steady(rounds: Sequence[float]) -> bool:
    """True of a window of rounds."""
    values = np.asarray(rounds, dtype=float)
    mean = float(values.mean())
    if mean <= 0:
        return False
    at = np.arange(len(values))
    slope = float(np.polyfit(at, values, 1)[0])
    return bool(np.ptp(values) <= EXCURSION * mean and abs(slope) * (len(values) - 1) <= SLOPE * mean)


def steady_from(samples: Sequence[float], per_round: int) -> int | None:
    """Number of the first sample of the first window that is steady; `None` if there is none."""
    whole = len(samples) // per_round
    rounds = [float(np.mean(samples[at * per_round : (at + 1) * per_round])) for at in range(whole)]
    for first in range(whole - ROUNDS + 1):
        if is_steady(rounds[first : first + ROUNDS]):
            return first * per_round
    return None

"""Two flash cards of 2010: random writes by how full they are, as published."""

from __future__ import annotations

import pandas as pd

FILLS = (20, 30, 40, 50, 60, 70, 80, 90, 100)

# MiB/s.
CARDS = pd.DataFrame(
    {
        "used %": FILLS,
        "card D (little spare area)": (1095, 1006, 825, 613, 397, 308, 237, 117, 99),
        "card T (large spare area)": (990, 980, 964, 872, 783, 669, 611, 502, 417),
    }
)
WHAT = "random writes of two cards of 2010 by how full they are, MiB/s"


def name(letter: str) -> str:
    """The column of the card with this letter."""
    return next(column for column in CARDS.columns if column.startswith(f"card {letter} "))

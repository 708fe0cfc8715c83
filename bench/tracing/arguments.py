"""What the command lines of `bench/traces` and `bench/frontier` take."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tracing.virtual import ENGINE


def shares(text: str) -> list[int]:
    """A list of percentages."""
    found = [int(part) for part in text.split(",") if part.isdecimal() and 1 <= int(part) <= 100]
    if len(found) != text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of percentages from 1 to 100, such as 5,10,20")
    return found


def policies(text: str) -> list[str]:
    """Reclaim policies by their names."""
    found = text.split(",")
    if not set(found) <= set(ENGINE):
        raise argparse.ArgumentTypeError(f"{text!r}: the policies are {', '.join(ENGINE)}")
    return found


def number(least: int, most: int) -> Callable[[str], int]:
    """A whole number in these limits."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
        return int(text)

    return parse

"""What the command line of `bench/traces` takes."""

from __future__ import annotations

import argparse

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


def depth(text: str) -> int:
    """Requests in flight."""
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1024")
    return int(text)

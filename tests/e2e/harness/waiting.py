"""Waiting for a condition: the only way in which a test lets time pass for others."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Everything takes longer where processors are emulated.
SLOWNESS = float(os.environ.get("E2E_SLOWNESS", "1"))


class NotInTime(AssertionError):
    """A condition did not become true within its limit."""


def eventually(condition: Callable[[], T], seconds: float = 30, what: str = "") -> T:
    """Calls `condition` until it returns something true, and returns that.

    An `AssertionError` of the condition counts as "not yet"; the last one is the cause of the failure.
    The limit is for a machine that does other work too: a test never asserts how fast something is."""
    until = time.monotonic() + seconds * SLOWNESS
    pause = 0.01
    while True:
        cause: AssertionError | None = None
        try:
            value = condition()
            if value:
                return value
        except AssertionError as error:
            cause = error
        if time.monotonic() > until:
            raise NotInTime(f"not within {seconds * SLOWNESS:.0f} s: {what or condition}") from cause
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)

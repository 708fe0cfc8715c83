"""The kinds of work, as fio options."""

from __future__ import annotations

from comparison.model import Case


def random_io(direction: str, depth: int, connections: int, size: int, seconds: float, label: str = "") -> Case:
    """4 KiB `read`s or `write`s anywhere in the first `size` bytes; the same block may come again at any time.

    (Without `norandommap` fio would visit every block once before any a second time. Then all copies in a log die
    together, and reclaim looks better than it is.)
    """
    job = (f"--rw=rand{direction}", "--bs=4k", "--norandommap", f"--size={size}")
    name = label or f"random {direction} 4k"
    return Case(f"{name}, {shape(depth, connections)}", (*job, *parallel(depth, connections)), seconds=seconds)


def sequential(direction: str, depth: int, size: int, seconds: float) -> Case:
    """128 KiB one after the other, from the beginning again at the end."""
    job = (f"--rw={direction}", "--bs=128k", f"--size={size}", *parallel(depth, 1))
    return Case(f"sequential {direction} 128k, {shape(depth, 1)}", job, unit="MB/s", seconds=seconds)


def parallel(depth: int, connections: int) -> tuple[str, ...]:
    """Options for so many requests in flight on each of so many connections."""
    return (f"--iodepth={depth}", f"--numjobs={connections}")


def shape(depth: int, connections: int) -> str:
    """As it stands in names of cases."""
    return f"depth {depth} x {connections}"

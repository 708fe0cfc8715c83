"""How large and how long: `--quick`, the default and `--full`."""

from __future__ import annotations

from dataclasses import dataclass

from harness import GIB, MIB


@dataclass(frozen=True)
class Scale:
    """Sizes in bytes, durations in seconds.

    `work_bytes` is what is read and written on flash; it fits `cache_bytes` four times. On the emulated disk caches
    have `disk_cache_bytes`, and are warmed up for `warm_s`: it takes thousands of misses, at hundreds a second.
    """

    name: str
    about: str
    rounds: int
    repeats: int
    seconds: float
    work_bytes: int
    cache_bytes: int
    disk_seconds: float
    disk_cache_bytes: int
    warm_s: float
    wide: bool
    deep: bool


QUICK = Scale(
    name="quick",
    about="every group in less than ten minutes on a quiet machine; for a look, not for figures to quote",
    rounds=3,
    repeats=0,
    seconds=1,
    work_bytes=128 * MIB,
    cache_bytes=512 * MIB,
    disk_seconds=2,
    disk_cache_bytes=32 * MIB,
    warm_s=10,
    wide=False,
    deep=False,
)
DEFAULT = Scale(
    name="default",
    about="about 50 minutes for all groups",
    rounds=3,
    repeats=2,
    seconds=5,
    work_bytes=512 * MIB,
    cache_bytes=2 * GIB,
    disk_seconds=10,
    disk_cache_bytes=64 * MIB,
    warm_s=60,
    wide=True,
    deep=False,
)
FULL = Scale(
    name="full",
    about="all depths and connections, large files, long runs: five hours, on a machine of its own",
    rounds=5,
    repeats=3,
    seconds=15,
    work_bytes=4 * GIB,
    cache_bytes=16 * GIB,
    disk_seconds=30,
    disk_cache_bytes=256 * MIB,
    warm_s=180,
    wide=True,
    deep=True,
)

"""Exact policies beside those of libCacheSim, on the same blocks in the same order.

    PYTHONPATH=bench python3 -m tracing.policies TRACE BLOCKS...

Run with a Python that has libcachesim (`bench/requirements-policies.txt`). Prints a JSON object for each number of
blocks: misses of reads in percent by policy. Every block of a request is one access, a write is an access like a read,
and only reads count.
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path
from typing import Any

import libcachesim

from tracing.records import accesses, read

# By the names of `crates/forebay-core/examples/traces/exact.rs`.
POLICIES = {
    "exact LRU": libcachesim.LRU,
    "ARC": libcachesim.ARC,
    "LIRS": libcachesim.LIRS,
    "S3-FIFO": libcachesim.S3FIFO,
    "SIEVE": libcachesim.Sieve,
    "Belady": libcachesim.Belady,
}
NEVER = (1 << 63) - 1
# Of the simulator's hash tables, as a power of two.
HASH_POWER = 18


def next_uses(numbers: list[int]) -> array[int]:
    """For each access when its block is used next."""
    seen: dict[int, int] = {}
    found = array("q", bytes(8 * len(numbers)))
    for at in range(len(numbers) - 1, -1, -1):
        found[at] = seen.get(numbers[at], NEVER)
        seen[numbers[at]] = at
    return found


def misses_pct(cache: Any, numbers: list[int], writes: list[bool], following: array[int]) -> float:
    """Reads that miss, in percent of all."""
    request = libcachesim.Request()
    request.obj_size = 1
    misses = 0
    for at, number in enumerate(numbers):
        # 0 is no name of an object.
        request.obj_id = number + 1
        request.clock_time = at
        request.next_access_vtime = following[at]
        hit = cache.get(request)
        misses += not hit and not writes[at]
    return 100 * misses / max(len(writes) - sum(writes), 1)


def main(trace: str, *sizes: str) -> None:
    """A line for each size."""
    pairs = list(accesses(read(Path(trace))))
    numbers, writes = [number for number, _ in pairs], [written for _, written in pairs]
    following = next_uses(numbers)
    for size in map(int, sizes):
        found = {
            name: misses_pct(make(cache_size=size, hashpower=HASH_POWER), numbers, writes, following)
            for name, make in POLICIES.items()
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

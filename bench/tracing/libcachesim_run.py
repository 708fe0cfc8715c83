"""libCacheSim on a trace of its own format: misses in percent, a line for each size.

    PYTHONPATH=bench python3 -m tracing.libcachesim_run TRACE POLICY BYTES...

Run with a Python that has libcachesim (`bench/requirements-policies.txt`).
"""

from __future__ import annotations

import sys

import libcachesim

POLICIES = {"fifo": libcachesim.FIFO, "lru": libcachesim.LRU, "s3fifo": libcachesim.S3FIFO}
# Of the simulator's hash tables, as a power of two.
HASH_POWER = 18


def main(trace: str, policy: str, *sizes: str) -> None:
    """Every request counts."""
    for size in map(int, sizes):
        reader = libcachesim.TraceReader(trace=trace, trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = POLICIES[policy](cache_size=size, hashpower=HASH_POWER)
        misses, _ = cache.process_trace(reader)
        print(100 * misses, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

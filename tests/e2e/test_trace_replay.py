"""The replay of bench/traces over NBD, on a small trace: the client finds every byte right, and the daemon's counters
show what the trace does. All that is written fits the cache, so reads of it hit, and those of other blocks miss,
which are read once."""

import json
import os
import struct
import sys
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import BINARY, ROOT, run

# In a process of its own: bench has modules of the same names.
REPLAY = """
import dataclasses, json, sys
from pathlib import Path
from tracing import daemon
trace, folder = map(Path, sys.argv[1:])
found = daemon.replay(trace, {"cache_blocks": 16384, "volume_blocks": 4096}, "s3fifo", 32, folder)
print(json.dumps(dataclasses.asdict(found)))
"""


def test_counters_show_what_the_trace_does(folder: Path) -> None:
    need("python3")
    if run(["/usr/bin/python3", "-c", "import nbd"], ok=False).code != 0:
        pytest.skip("python3-libnbd is not installed (scripts/setup installs it)")
    written = [(first, 4, 1) for first in range(0, 2048, 4)]
    read = [(first, 4, 0) for first in range(0, 2048, 4)]
    steps = ((2, 1, 1), (1, 5, 0), (3, 2, 1), (0, 4, 0))
    mixed = [(first + at, blocks, write) for first in range(0, 1024, 8) for at, blocks, write in steps]
    others = [(first, 1, 0) for first in range(3000, 3500, 5)]
    trace = folder / "small.bin"
    trace.write_bytes(b"".join(struct.pack("<QQII", 0, *one) for one in written + read + mixed + others))

    bench = {"PYTHONPATH": str(ROOT / "bench"), "PYTHONDONTWRITEBYTECODE": "1", "FOREBAY": str(BINARY)}
    result = run([sys.executable, "-c", REPLAY, trace, folder], env={**os.environ, **bench}, cwd=folder)
    found = json.loads(result.stdout)
    reads = 2048 + 128 * (5 + 4) + 100
    missed = 100 * 100 / reads
    assert abs(found["misses_pct"] - missed) < 1e-9, (
        f"100 of {reads} blocks that are read were not written before: {found}"
    )
    assert 1 < found["written"] < 2, f"everything is written once, with headers: {found}"
    assert not list(folder.rglob("forebay-bench-*")), "the replay leaves files behind"

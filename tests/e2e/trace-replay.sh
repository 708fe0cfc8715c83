#!/usr/bin/env bash
# The replay of bench/traces over NBD, on a small trace: the client finds every byte right, and the daemon's counters say what the
# trace does. All that is written fits the cache, so reads of it hit, and those of other blocks miss, which are read once.
. "$(dirname "$0")/lib.sh"
need python3
/usr/bin/python3 -c 'import nbd' 2>/dev/null || skip "python3-libnbd is not installed (scripts/setup installs it)"

cat >"$T/replay.py" <<'END'
import struct, sys
from pathlib import Path

from tracing import daemon

folder = Path(sys.argv[1])
written = [(first, 4, 1) for first in range(0, 2048, 4)]
read = [(first, 4, 0) for first in range(0, 2048, 4)]
steps = ((2, 1, 1), (1, 5, 0), (3, 2, 1), (0, 4, 0))
mixed = [(first + at, blocks, write) for first in range(0, 1024, 8) for at, blocks, write in steps]
others = [(first, 1, 0) for first in range(3000, 3500, 5)]
trace = folder / "small.bin"
trace.write_bytes(b"".join(struct.pack("<QQII", 0, *one) for one in written + read + mixed + others))
found = daemon.replay(trace, {"cache_blocks": 16384, "volume_blocks": 4096}, "s3fifo", 32, folder)
print(found)
reads = 2048 + 128 * (5 + 4) + 100
assert abs(found.misses_pct - 100 * 100 / reads) < 1e-9, f"100 of {reads} blocks that are read were not written before"
assert 1 < found.written < 2, "everything is written once, with headers"
END
PYTHONPATH=$ROOT/bench PYTHONDONTWRITEBYTECODE=1 FOREBAY=$FOREBAY python3 "$T/replay.py" "$T"
[ -z "$(find "$T" -name 'forebay-bench-*')" ] || fail "the replay leaves files behind"

#!/usr/bin/env bash
# Discards that are too small for the backing store to get them at once become holes there all the same, by destage.
. "$(dirname "$0")/lib.sh"
need python3

make_backing 32M
start --set idle_delay=1s
cat >"$T/discard.py" <<'END'
import os, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, TRIM, WRITE, Client
client = Client(sys.argv[1], "vol", timeout=60)
MIB, PIECE = 1 << 20, 64 << 10
for at in range(0, 16 * MIB, MIB):
    assert client.call(WRITE, at, MIB, os.urandom(MIB))[0] == 0
if sys.argv[2] == "discard":
    for at in range(0, 16 * MIB, PIECE):
        assert client.call(TRIM, at, PIECE)[0] == 0
    # One block in the middle is data again.
    assert client.call(WRITE, 5 * MIB, 4096, b"x" * 4096)[0] == 0
assert client.call(FLUSH)[0] == 0
if sys.argv[2] == "discard":
    error, data = client.call(READ, 5 * MIB - 4096, 12288)
    assert not error and data == bytes(4096) + b"x" * 4096 + bytes(4096)
END
export E2E

allocated_kib() { du -k "$BACKING" | cut -f1; }
has() { [ "$(allocated_kib)" "$1" "$2" ]; }

say "16 MiB of data are written back"
python3 "$T/discard.py" "$SOCKET" write || fail "the client"
eventually 60 has -ge $((16 << 10)) || fail "the backing store holds $(allocated_kib) KiB, expected 16 MiB"
say "discarding them 64 KiB at a time gives the room back"
python3 "$T/discard.py" "$SOCKET" discard || fail "the client"
eventually 60 has -le 512 || fail "the backing store still holds $(allocated_kib) KiB"
stop
python3 - "$BACKING" <<'END' || fail "the backing store does not hold what was left"
import sys
with open(sys.argv[1], "rb") as file:
    data = file.read(16 << 20)
assert data[5 << 20:(5 << 20) + 4096] == b"x" * 4096 and data.count(0) == len(data) - 4096
END

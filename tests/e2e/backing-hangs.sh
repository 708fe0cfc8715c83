#!/usr/bin/env bash
# A backing store that does not answer, for a while: what is cached is still served, writes that the cache takes are
# acknowledged, and when it answers again everything goes on. The store is a file of another daemon, which is stopped.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"

truncate -s 64M "$T/disk.img"
mkdir "$T/slow"
# Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
"$FOREBAY" run --io psync --backing "file:$T/disk.img" --cache "$T/other.img:64MiB" --export "fuse:$T/slow/disk.img" \
    >"$T/other.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs TERM $OTHER; umount -l $T/slow"
eventually "$READY_SECONDS" test -e "$T/slow/disk.img" || fail "the slow store is not there: $(cat "$T/other.out")"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/slow/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
idle_delay = "off"
END
serve
cat >"$T/hang.py" <<'END'
import os, signal, sys, time
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, WRITE, Client
other = int(sys.argv[2])
client, second = Client(sys.argv[1], "db", timeout=20), Client(sys.argv[1], "db", timeout=60)
block = bytes([7]) * 4096
for at in range(0, 1 << 20, 4096):
    assert client.call(WRITE, at, 4096, block)[0] == 0
assert client.call(FLUSH)[0] == 0
os.kill(other, signal.SIGSTOP)
# A miss: it waits for as long as the store does.
second.request(READ, 9, 32 << 20, 4096)
# And more of them than operations may be in the kernel at once: the cache must not wait behind them.
crowd = [Client(sys.argv[1], "db", timeout=60) for _ in range(4)]
for number, one in enumerate(crowd):
    for cookie in range(500):
        one.request(READ, cookie, (4 << 20) + (number * 500 + cookie) * 16384, 4096)
time.sleep(1)
started = time.monotonic()
for turn in range(500):
    at = turn % 256 * 4096
    error, data = client.call(READ, at, 4096)
    assert not error and data == block, f"a hit at {at}: {error}"
    assert client.call(WRITE, at, 4096, block)[0] == 0
assert client.call(FLUSH)[0] == 0
took = time.monotonic() - started
assert took < 10, f"500 hits and writes took {took:.1f} s"
os.kill(other, signal.SIGCONT)
error, cookie = second.reply()
assert (error, cookie) == (0, 9) and second.receive(4096) == bytes(4096)
for one in crowd:
    for _ in range(500):
        error, _ = one.reply()
        assert error == 0 and one.receive(4096) == bytes(4096)
print(f"500 hits and writes in {took * 1000:.0f} ms while the backing store hung")
END
export E2E
say "hits and cached writes while the backing store hangs"
python3 "$T/hang.py" "$T/nbd.sock" "$OTHER" || fail "a hung backing store stops the cache"
say "it answers again: everything is written back"
ask flush db
unserve

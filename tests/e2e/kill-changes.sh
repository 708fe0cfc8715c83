#!/usr/bin/env bash
# kill -9 in the middle of changes of a pool's size: the next start serves the volume, whatever of the change is on the devices, in the
# configuration or in neither, and the change can be asked for again.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

truncate -s 64M "$T/db.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "32MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
idle_delay = "off"
END
cat >"$T/io.py" <<'END'
import os, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, WRITE, Client
client = Client(sys.argv[2], "db")
for at in range(800):
    block = bytes([(at * 7) % 256]) * 4096
    if sys.argv[1] == "write":
        assert client.call(WRITE, at * 8192, 4096, block)[0] == 0
    else:
        assert client.call(READ, at * 8192, 4096) == (0, block), at
if sys.argv[1] == "write":
    assert client.call(FLUSH)[0] == 0
END
export E2E
io() { python3 "$T/io.py" "$1" "$T/db.sock" || fail "$1: $2"; }
killed_in() { # MILLISECONDS COMMAND...
    local after=$1 pid
    shift
    "$FOREBAY" "$@" --admin "$ADMIN" >"$T/killed.out" 2>&1 &
    pid=$!
    sleep "$(printf '0.%03d' "$after")"
    crash
    wait "$pid" || true
    serve
    io read "after a kill $after ms into forebay $*"
}

serve
io write first
say "killed while it grows and shrinks"
for after in 5 20 40 80 160; do
    killed_in "$after" pool grow fast --device "$T/more.img:32MiB"
    if ! grep -q more.img "$T/forebay.toml"; then ask pool grow fast --device "$T/more.img:32MiB" --force; fi
    ask pool show fast --json
    grep -q more.img "$T/ask.out" || ask pool grow fast --device "$T/more.img:32MiB" --force
    killed_in "$after" pool shrink fast --device "$T/more.img"
    ask pool show fast --json
    if grep -q more.img "$T/ask.out"; then ask pool shrink fast --device "$T/more.img"; fi
    unserve
    rm -f "$T/more.img"
    sed -i 's|^devices = .*|devices = [{ path = "'"$T"'/flash.img", size = "32MiB" }]|' "$T/forebay.toml"
    serve
done
unserve

say "a cache file has another length than the configuration says"
truncate -s 48M "$T/flash.img"
serve
io read "a file that was made longer"
logged 'has 48MiB, not 32MiB as given: it is whole'
ask pool grow fast --size max
killed_in 30 pool shrink fast --size 24MiB
unserve

say "a device that the cache does not lie on yet, and that cannot join: the pool is opened without it, and the hint works"
truncate -s 32M "$T/blank.img"
sed -i 's|^devices = .*|devices = ["'"$T"'/flash.img", "'"$T"'/blank.img"]|' "$T/forebay.toml"
serve
io read "a device that cannot join"
logged 'opened without .*blank.img, which its cache does not lie on yet.*forebay pool grow fast --device'
refused 1 'the same command with --force' "$FOREBAY" pool grow fast --device "$T/blank.img" --admin "$ADMIN"
ask pool grow fast --device "$T/blank.img" --force
io read "it has joined"
unserve
serve
io read "two devices"
ask pool show fast
grep -q blank.img "$T/ask.out" || fail "it has not joined: $(cat "$T/ask.out")"
unserve

#!/usr/bin/env bash
# The cache is not there, or is not the one that it was: at a start with a missing cache, or an older copy of it, nothing is made
# anew, nothing is acknowledged and other pools are served; when the right one is back everything acknowledged is there.
# Hints of messages are followed literally. A kill at any instant of a start does not turn a good cache away.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 mount

mkdir "$T/flash"
mount -t tmpfs -o size=300M tmpfs "$T/flash" || skip "no tmpfs may be mounted here"
on_exit "umount -l $T/flash; umount -l $T/flash"
unplug() { mount -t tmpfs -o size=300M tmpfs "$T/flash"; } # as if it had not been mounted at boot
plug() { umount "$T/flash"; }
for disk in db other; do truncate -s 64M "$T/$disk.img"; done
settings() { # DEVICES of pool fast, as TOML
    config <<END
[pool.fast]
devices = [$1]
[pool.slow]
devices = [{ path = "$T/slow.img", size = "16MiB" }]
[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
[volume.other]
pool = "slow"
backing = "file:$T/other.img"
exports = ["nbd+unix:///vol?socket=$T/other.sock"]
END
}
settings "{ path = \"$T/flash/cache.img\", size = \"32MiB\" }"

cat >"$T/blocks.py" <<'END'
"""write SOCKET SALT: 500 blocks that name themselves, acknowledged. read: how many are right, wrong."""
import os, struct, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, WRITE, Client
what, socket, salt = sys.argv[1], sys.argv[2], int(sys.argv[3])
client, right = Client(socket, "vol"), 0
for block in range(500):
    data = struct.pack("<QQ", salt, block) * 256
    if what == "write":
        assert client.call(WRITE, block * 4096 * 7, 4096, data)[0] == 0
    else:
        error, found = client.call(READ, block * 4096 * 7, 4096)
        right += error == 0 and found == data
if what == "write":
    assert client.call(FLUSH, 0, 0)[0] == 0
else:
    print(right)
END
export E2E
blocks() { python3 "$T/blocks.py" "$@"; }
all_there() { [ "$(blocks read "$SOCKET" "$1")" = 500 ] || fail "$2: $(blocks read "$SOCKET" "$1") of 500 blocks are right"; }
turned_away() { # WORDS: pool fast is not served, says why, and pool slow is
    ask alarms --json
    grep -q 'pool.failed' "$T/ask.out" || fail "no alarm: $(cat "$T/ask.out")"
    grep -Eq "$1" "$T/ask.out" || fail "the alarm does not say '$1': $(cat "$T/ask.out")"
    logged "$1"
    if blocks write "$SOCKET" 9 2>/dev/null; then fail "something was acknowledged"; fi
    blocks write "$T/other.sock" 3 || fail "the other pool is not served"
}
hint() { sed -n "s/.*\(forebay $1\).*/\1/p" "$T/ask.out" | head -n 1; } # the command of a message
literally() { local -a words; read -ra words <<<"$1"; "$FOREBAY" "${words[@]:1}" --admin "$ADMIN" >"$T/ask.out" 2>&1; }
record() { ls "$T"/state/caches/*.json; }

say "missing at the start: refused, also a second time, and by name; nothing is made"
serve
blocks write "$SOCKET" 1
unserve
unplug
for _ in 1 2; do
    serve
    turned_away 'is not there, but the cache [0-9a-f]* of pool fast on .* is recorded'
    [ ! -e "$T/flash/cache.img" ] || fail "a cache was made"
    "$FOREBAY" pool open fast --admin "$ADMIN" >"$T/ask.out" 2>&1 && fail "it opened"
    "$FOREBAY" pool show fast --admin "$ADMIN" >"$T/ask.out" 2>&1 || fail "it is not shown: $(cat "$T/ask.out")"
    grep -q 'is not there, but the cache' "$T/ask.out" || fail "pool show: $(cat "$T/ask.out")"
    crash
done
say "an empty file in its place, and its path misspelt: no other"
serve
truncate -s 32M "$T/flash/cache.img"
"$FOREBAY" pool open fast --force --admin "$ADMIN" >"$T/ask.out" 2>&1 && fail "an empty file was taken"
grep -q 'holds no cache, but' "$T/ask.out" || fail "$(cat "$T/ask.out")"
unserve
settings "{ path = \"$T/flash/cahce.img\", size = \"32MiB\" }"
serve
turned_away 'cahce.img is not there, but'
unserve
settings "{ path = \"$T/flash/cache.img\", size = \"32MiB\" }"
say "back again, by the hint of the message: everything is there"
serve
plug
literally "$("$FOREBAY" alarms --json --admin "$ADMIN" | grep -o 'forebay pool open fast' | head -n 1)" || fail "the hint does not work: $(cat "$T/ask.out")"
all_there 1 "after it came back"

say "an older copy, taken at a stop: refused"
unserve
cp "$T/flash/cache.img" "$T/older"
serve
blocks write "$SOCKET" 2
unserve
mv "$T/flash/cache.img" "$T/newest"
cp "$T/older" "$T/flash/cache.img"
serve
turned_away 'is an older copy'
"$FOREBAY" check "$T/flash/cache.img" --state-dir "$T/state" >"$T/check.out" 2>&1 && fail "check does not tell: $(cat "$T/check.out")"
grep -q 'older' "$T/check.out" || fail "check does not tell: $(cat "$T/check.out")"
refused 1 'uncertain' "$FOREBAY" salvage "$T/older" --to "$T/salvaged" --state-dir "$T/state"
grep -q 'older copy of the cache' "$T/refused.out" || fail "salvage does not tell: $(cat "$T/refused.out")"
[ ! -e "$T/salvaged/db.dirty" ] || fail "old data counts as dirty"
unserve
cp "$T/newest" "$T/flash/cache.img"
serve
all_there 2 "the newest copy"

say "an older copy, taken while it was in use; then a kill"
cp "$T/flash/cache.img" "$T/older"
touch "$T/before"
blocks write "$SOCKET" 4
sleep 6 # records follow every 5 s
recorded() { find "$T/state/caches" -name '*.json' -newer "$T/before" -exec grep -l '"fast"' {} + | grep . >/dev/null; }
eventually 30 recorded || fail "nothing is recorded: $(ls -l --time-style=full-iso "$T/state/caches" "$T/before")"
crash
cp "$T/flash/cache.img" "$T/newest"
cp "$T/older" "$T/flash/cache.img"
serve
turned_away 'older copy'
unserve
cp "$T/newest" "$T/flash/cache.img"
serve
all_there 4 "the newest copy after a kill"

say "two copies at once: the second one is refused"
cp "$T/flash/cache.img" "$T/copy"
refused 1 'copies of one cache|in use|older' env STATE_DIRECTORY="$T/state" "$FOREBAY" run --backing "file:$T/other.img" --cache "$T/copy" \
    --export "nbd+unix:///v?socket=$T/v.sock" --mode writethrough
unserve

say "kills during the start: never turned away"
for ms in 5 20 35 50 65 80 100 130 160 200; do
    "$FOREBAY" serve --config "$T/forebay.toml" 2>>"$T/kills" &
    DAEMON=$!
    sleep "0.$(printf %03d $ms)"
    kill -9 "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
done
serve
all_there 4 "after kills at the start"
unserve

say "the state directory cannot be written: refused before anything is acknowledged"
mount --bind "$T/state" "$T/state" && mount -o remount,bind,ro "$T/state" || fail "no read-only folder"
on_exit "umount -l $T/state"
serve
logged 'cannot write .*state/caches/.*: Read-only file system'
if blocks write "$SOCKET" 9 2>/dev/null; then fail "something was acknowledged"; fi
unserve
umount "$T/state"

say "given up by --new-cache, as the message says: a new one; the old one does not come back"
unplug
serve
command=$("$FOREBAY" alarms --json --admin "$ADMIN" | grep -o 'forebay pool open fast --new-cache' | head -n 1)
literally "$command" || fail "the hint does not work: $(cat "$T/ask.out")"
blocks write "$SOCKET" 5
unserve
cp "$T/flash/cache.img" "$T/second"
plug
serve
turned_away 'was given up'
unserve
cp "$T/second" "$T/flash/cache.img"
serve
all_there 5 "the new cache"
unserve

say "pool renamed in the configuration, its cache moved: opened"
mv "$T/flash/cache.img" "$T/flash/moved.img"
settings "{ path = \"$T/flash/moved.img\" }"
sed -i 's/fast/quick/' "$T/forebay.toml"
serve
all_there 5 "renamed and moved"
say "removed, then created with the same name: nothing in the way"
ask volume detach db
ask pool remove quick
rm "$T/flash/moved.img"
ask pool create quick --device "$T/flash/again.img:16MiB"
unserve
grep -l '"removed"' "$T"/state/caches/*.json >/dev/null || fail "$(cat "$T"/state/caches/*.json)"

say "forebay run: its cache is missing"
export STATE_DIRECTORY=$T/run-state
make_backing 16M
CACHE=$T/flash/run.img
start
blocks write "$SOCKET" 6
stop
mv "$CACHE" "$T/aside.img"
refused 1 "is recorded
--new-cache" "$FOREBAY" run --backing "file:$BACKING" --cache "$CACHE:16MiB" --export "$URI"
[ ! -e "$CACHE" ] || fail "run made a cache"
mv "$T/aside.img" "$CACHE"
start
all_there 6 "forebay run"
stop
rm "$CACHE"
start --new-cache
stop

#!/usr/bin/env bash
# Ways out: a pool that cannot be opened is shown with what is known of its cache, and can be removed, but only by force if something may
# be dirty; and a reload does what the file says, or says what does. Hints are followed literally.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3
for disk in db w third; do truncate -s 64M "$T/$disk.img"; done
base='[pool.fast]
devices = [{ path = "'$T'/fast.img", size = "64MiB" }]
[pool.other]
devices = [{ path = "'$T'/other.img", size = "64MiB" }]
[volume.w]
pool = "other"
backing = "file:'$T'/w.img"
exports = []
'
db='[volume.db]
pool = "fast"
backing = "file:'$T'/db.img"
exports = ["nbd+unix:///db?socket='$T'/db.sock"]
idle_delay = "off"
'
config <<<"$base$db"
cat >"$T/io.py" <<'END'
import os, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, WRITE, Client
client, block = Client(sys.argv[2], "db"), b"\x07" * 65536
for at in range(0, 4 << 20, 65536):
    if sys.argv[1] == "write":
        assert client.call(WRITE, at, 65536, block)[0] == 0
    else:
        assert client.call(READ, at, 65536) == (0, block), at
if sys.argv[1] == "write":
    assert client.call(FLUSH)[0] == 0
END
export E2E
io() { python3 "$T/io.py" "$1" "$T/db.sock" || fail "$1"; }
hint() { grep -o "forebay $1" "$T/refused.err" | head -n 1; }
literally() { local -a words; read -ra words <<<"$1"; ask "${words[@]:1}"; }
in_file() { grep -q "$1" "$T/forebay.toml"; }

say "a pool whose cache is gone with dirty data: shown, and removed by force only"
serve
io write
ask pool show fast
grep -q "recorded in.*$T/state/caches/" "$T/ask.out" || fail "the record is not shown: $(cat "$T/ask.out")"
crash
mv "$T/fast.img" "$T/kept.img"
serve
ask pool list
grep -q 'fast.*NOT OPEN: maybe dirty' "$T/ask.out" || fail "not in the list: $(cat "$T/ask.out")"
python3 -c 'import sys; sys.exit(max(map(len, open(sys.argv[1], encoding="utf-8").read().split("\n"))) > 81)' "$T/ask.out" ||
    fail "the list is wide: $(cat "$T/ask.out")"
ask status
grep -q 'fast.*NOT OPEN: maybe dirty' "$T/ask.out" || fail "not in the status: $(cat "$T/ask.out")"
ask pool list --json
python3 - "$T/ask.out" <<'END' || fail "the JSON: $(cat "$T/ask.out")"
import json, sys
pools = {pool["name"]: pool for pool in json.load(open(sys.argv[1]))}
assert pools["fast"]["not_open"] and pools["fast"]["recorded"]["in_use"], pools["fast"]
assert not pools["other"]["not_open"] and pools["other"]["recorded"]["generation"] > 0, pools["other"]
assert pools["fast"]["volumes"] == ["db"]
END
refused 1 'is not open, and it is the pool of db' "$FOREBAY" pool remove fast --admin "$ADMIN"
refused 1 'cannot be wiped' "$FOREBAY" pool remove fast --erase --force --admin "$ADMIN"
refused 1 'pool of db' "$FOREBAY" pool remove fast --admin "$ADMIN"
literally "$(hint 'pool remove fast --force')"
if in_file 'pool.fast' || in_file 'volume.db'; then fail "it is still in the file"; fi
ask alarms
grep -q 'no alarms\|there are no' "$T/ask.out" || fail "an alarm is left: $(cat "$T/ask.out")"
ask pool list
if grep -q fast "$T/ask.out"; then fail "it is still in the list"; fi

say "the cache comes back: it is taken again, with what is dirty in it"
mv "$T/kept.img" "$T/fast.img"
ask pool create fast --device "$T/fast.img:64MiB"
ask volume attach db --pool fast --backing "file:$T/db.img" --export "nbd+unix:///db?socket=$T/db.sock" --set idle_delay=off
io read

say "a reload that takes out what is there, and what was taken out says so and nothing else"
config <<<"$base$db
[pool.mistyped]
devices = [{ path = \"$T/none/x.img\", size = \"64MiB\" }]"
refused 1 'mistyped' "$FOREBAY" reload --admin "$ADMIN"
config <<<"${base%%\[pool.other*}$db"
ask reload
grep -q 'volume w detached' "$T/ask.out" && grep -q 'pool other closed' "$T/ask.out" || fail "$(cat "$T/ask.out")"
grep -q 'mistyped' "$T/ask.out" || fail "$(cat "$T/ask.out")"
ask alarms
grep -q 'no alarms\|there are no' "$T/ask.out" || fail "an alarm is left: $(cat "$T/ask.out")"

say "a pool that never was is removed without force"
echo "[pool.mistyped]
devices = [{ path = \"$T/none/x.img\", size = \"64MiB\" }]" >>"$T/forebay.toml"
refused 1 'mistyped' "$FOREBAY" reload --admin "$ADMIN"
ask pool remove mistyped
if in_file mistyped; then fail "it is still in the file"; fi

say "settings: what is asked at the next attach is taken; what cannot be is told each time, and the hint works"
fast=${base%%\[pool.other*}
wanted="$fast${db}on_backing_change = \"keep-dirty\"
emulate = \"hdd-7200\""
for _ in 1 2; do
    config <<<"$wanted"
    refused 1 'volume.db.emulate: it is none until.*take the volume out of the file, reload, put it back, and reload' \
        "$FOREBAY" reload --admin "$ADMIN"
    ask get db
    grep -q 'on_backing_change.*keep-dirty' "$T/ask.out" && grep -q 'emulate.*none' "$T/ask.out" || fail "$(cat "$T/ask.out")"
done
config <<<"$fast"
ask reload
config <<<"$wanted"
ask reload
ask get db
grep -q 'hdd-7200' "$T/ask.out" || fail "$(cat "$T/ask.out")"
io read
unserve

#!/usr/bin/env bash
# What only the cache had is damaged, in many places: every surface says so, and the same. A FLUSH fails once, the job as long as
# it is so, the log has a few lines, the alarm ends when the ranges are written again. A restart finds them again.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/spoil-lib.sh"
need qemu-io curl

truncate -s 64M "$T/disk.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "256MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
dirty_low_pct = 70
dirty_high_pct = 80
idle_delay = "1h"
END
serve

DB="nbd+unix:///db?socket=$T/nbd.sock"
client() { qemu-io -f raw "$@" "$DB" >"$T/qemu-io.out" 2>&1; }
well() { client "$@" || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
api() { curl -s --unix-socket "$ADMIN" "http://x/v1/$1"; }
# All surfaces, compared with one another and with what is lost of db.
agree() { # BYTES RANGES
    "$FOREBAY" volume show db --admin "$ADMIN" >"$T/show.out" 2>&1
    "$FOREBAY" volume show db --json --admin "$ADMIN" >"$T/show.json" 2>&1
    "$FOREBAY" pool show fast --admin "$ADMIN" >"$T/pool.out" 2>&1
    "$FOREBAY" status --admin "$ADMIN" >"$T/status.out" 2>&1
    for what in volumes/db volumes/db/losses volumes/db/stats pools/fast alarms; do
        api "$what" >"$T/api.${what//\//.}"
    done
    curl -s --unix-socket "$ADMIN" http://x/metrics >"$T/api.metrics"
    python3 - "$T" "$1" "$2" >"$T/agree.out" 2>&1 <<'PY'
import json, re, sys
from pathlib import Path
t, size, ranges = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def of(name): return json.loads((t / f"api.{name}").read_text())
def check(what, found, wanted):
    assert found == wanted, f"{what}: {found}, not {wanted}"
listed = of("volumes.db.losses")
listed = listed.get("losses", listed) if isinstance(listed, dict) else listed
check("losses", (sum(loss["bytes"] for loss in listed), len(listed)), (size, ranges))
# Not the times, which follow from ages: they may differ by a second.
def places(losses): return [(loss["offset_bytes"], loss["bytes"]) for loss in losses]
shown = places(json.loads((t / "show.json").read_text()).get("losses", []))
assert shown == places(listed), "volume show --json lists other ranges than /losses"
for name in ("volumes.db", "pools.fast"):
    check(name, (of(name)["lost_bytes"], of(name)["lost_ranges"]), (size, ranges))
stats = of("volumes.db.stats")
check("stats", (stats["lost_bytes"], stats["lost_blocks"]), (size, size // 4096))
found = re.findall(r"^forebay_lost_bytes\{.*\} (\d+)$", (t / "api.metrics").read_text(), re.M)
check("metrics", {int(value) for value in found}, {size})
alarms = [alarm for alarm in of("alarms")["alarms"] if alarm["condition"] == "block.lost"]
words = f" in {ranges} range{'s' if ranges > 1 else ''} of db"
check("alarms", len(alarms), 1 if size else 0)
for alarm in alarms:
    assert words in alarm["message"], alarm
for name in ("show.out", "pool.out", "status.out"):
    check(name, "LOST" in (t / name).read_text(), size > 0)
PY
}
agreed() { eventually 10 agree "$@" || { cat "$T/agree.out"; fail "not all say that $1 bytes in $2 ranges are lost"; }; }

say "1 MiB clean, 4 MiB dirty, half of its blocks damaged"
well -c "write -P 0x61 0 1M" -c flush
ask flush db
agreed 0 0
well -c "write -P 0x62 8M 4M" -c flush
[ "$(spoil 0x62)" = 512 ] || fail "not 512 blocks were spoilt"
refused 1 '2MiB in 512 ranges' "$FOREBAY" pool scrub fast --rate 1GiB --admin "$ADMIN"
agreed 2097152 512
lines=$(grep -c 'LOST' "$T/stderr" || true)
[ "$lines" -le 4 ] || fail "$lines lines of the log for one loss"

say "one FLUSH of the client fails, the job as long as it is so"
client -c "flush" && fail "a FLUSH that covers a loss succeeded: $(cat "$T/qemu-io.out")"
well -c flush
for _ in 1 2; do
    refused 1 '2MiB in 512 ranges' "$FOREBAY" flush db --admin "$ADMIN"
done
api volumes/db | grep '"dirty_bytes":0' >/dev/null || fail "the rest was not written back: $(api volumes/db)"
refused 1 'LOST' "$FOREBAY" volume detach db --admin "$ADMIN"
client -r -c "read -P 0x62 8M 4k" && fail "what is lost was read"
well -r -c "read -P 0x62 8196k 4k"

say "a part is written again, and the stop says what is left"
well -c "write -P 0x63 8M 2M" -c flush
agreed 1048576 256
unserve
grep -q 'nothing is dirty' "$T/stderr" && fail "the stop says that all is well: $(tail -3 "$T/stderr")"
grep -q 'stopped;.*LOST: 1MiB in 256 ranges of db' "$T/stderr" || fail "the stop does not say what is lost: $(tail -3 "$T/stderr")"

say "the next start finds the same, and so does one after kill -9"
serve
agreed 1048576 256
client -c flush && fail "the clients of this start were not told"
crash
serve
agreed 1048576 256

say "detached and kept, attached again: the same"
ask volume detach db --keep
api pools/fast | grep '"lost_bytes":1048576' >/dev/null || fail "forgotten while it is away: $(api pools/fast)"
ask volume attach db --pool fast --backing "file:$T/disk.img" --export "$DB"
agreed 1048576 256

say "written again in exactly the listed ranges: nothing is lost"
writes=()
while read -r offset bytes; do
    writes+=(-c "write -P 0x64 $offset $bytes")
done < <(api volumes/db/losses | python3 -c 'import json, sys
for loss in json.load(sys.stdin): print(loss["offset_bytes"], loss["bytes"])')
well "${writes[@]}"
agreed 0 0
client -c flush || true
well -c flush
ask flush db
unserve
grep -q 'stopped; the backing store has everything, nothing is dirty' "$T/stderr" || fail "$(tail -3 "$T/stderr")"
say "told everywhere the same"

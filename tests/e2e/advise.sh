#!/usr/bin/env bash
# Would a larger cache help? A load that twice the cache would hold says so, in words, in JSON, and of the pool; nothing is said of
# what was not read; and mistakes are told.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need curl

truncate -s 512M "$T/disk.img" "$T/idle.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "128MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]

[volume.idle]
pool = "fast"
backing = "file:$T/idle.img"
exports = ["nbd+unix:///idle?socket=$T/idle.sock"]
END
serve

advise() { "$FOREBAY" advise "$@" --admin "$ADMIN"; }
advise idle >"$T/nothing" || fail "advise of a volume that nobody reads"
grep -q 'too little to say anything' "$T/nothing" || fail "it says something of nothing: $(cat "$T/nothing")"

# Twice the cache holds what is read; today's size is far from that, where a little more or less of it decides over everything.
say "random reads of 320 MiB, in a cache of 128 MiB"
fio --name=load --ioengine=nbd --uri="nbd+unix:///db?socket=$T/nbd.sock" --iodepth=8 --rw=randread --bs=16k --size=320M \
    --norandommap --io_size=1200M --output="$T/fio.out" || fail "$(cat "$T/fio.out")"

advise db >"$T/words" || fail "advise db"
cat "$T/words"
advise db --json >"$T/volume.json" || fail "advise --json"
advise --pool fast --hours 0 --json >"$T/pool.json" || fail "advise --pool"
"$FOREBAY" stats db --admin "$ADMIN" --format json >"$T/stats.json" || fail "stats"
python3 - "$T" <<'PY' || fail "see above"
import json, sys
from pathlib import Path
t = Path(sys.argv[1])
volume, pool, stats = (json.loads((t / f"{name}.json").read_text()) for name in ("volume", "pool", "stats"))
words = (t / "words").read_text()
def hits(advice): return {size["times"]: size["hit_pct"] for size in advice["sizes"]}
def within(what, value, low, high): assert low <= value <= high, f"{what}: {value}, not {low} to {high}"
of = hits(volume)
assert list(of) == [0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8], of
# fio reads the same two thirds of the range, in the same order, nearly six times.
counters = stats if "read_hit_blocks" in stats else stats["volumes"]["db"]
measured = 100 * counters["read_hit_blocks"] / (counters["read_hit_blocks"] + counters["read_miss_blocks"])
within("modelled and measured", of[1] - measured, -4, 4)
within("half", of[0.5], of[1] * 0.4, of[1] * 0.7)
within("twice", of[2], 80, 86)
assert of[8] - of[2] < 1, "twice is enough"
assert volume["read_bytes"] == 1200 << 20 and pool["read_bytes"] == volume["read_bytes"], (volume, pool)
assert hits(pool) == of and pool["volume"] == "", "nobody else reads from the pool"
bounds = {size["times"]: size["is_lower_bound"] for size in volume["sizes"]}
assert not bounds[1] and bounds[8], bounds
assert f"hits {of[1]:.1f} -> {of[2]:.1f} %+" in words, words
assert all(len(line) <= 80 for line in words.splitlines()), words
PY

refused() { # WORDS ARGUMENTS...
    local words=$1
    shift
    if advise "$@" >"$T/refused" 2>&1; then fail "advise $* was not refused"; fi
    grep -q -- "$words" "$T/refused" || fail "advise $* says: $(cat "$T/refused")"
}
refused 'nothing is called\|there is no volume\|no volume' dbb
refused 'pool' --pool slow
refused '24' db --hours 24
refused 'required\|VOLUME' 
# What is no number is no request; what is too large makes no sense.
for asked in x:400 -1:400 99999999999999999999:400 24:422; do
    code=$(curl -s -o /dev/null -w '%{http_code}' --unix-socket "$ADMIN" "http://x/v1/volumes/db/advice?hours=${asked%:*}")
    [ "$code" = "${asked#*:}" ] || fail "hours=${asked%:*} is answered with $code"
done
say "passed"

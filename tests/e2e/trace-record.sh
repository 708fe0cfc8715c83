#!/usr/bin/env bash
# Recording: what fio asks for is in the trace, with outcomes and latencies; two recorders of one volume do not disturb each other; a
# recording ends by itself, by Ctrl-C, by `forebay jobs --cancel`, with its volume, and with the daemon, and is readable each time.
# Then conversions over pipes, and what is refused.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need python3

truncate -s 256M "$T/disk.img" "$T/other.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]

[volume.other]
pool = "fast"
backing = "file:$T/other.img"
exports = ["nbd+unix:///other?socket=$T/other.sock"]
END
serve
export FOREBAY_ADMIN=$ADMIN


jobs_running() { "$FOREBAY" jobs --json | python3 -c '
import json, sys
jobs = json.load(sys.stdin)
jobs = jobs if isinstance(jobs, list) else jobs["jobs"]
print(*[job["id"] for job in jobs if job["kind"] == "record" and job["state"] == "running"])'; }
recording() { [ "$(jobs_running | wc -w)" = "$1" ]; }
load() { fio --name=load --ioengine=nbd --uri="nbd+unix:///db?socket=$T/nbd.sock" --iodepth=4 --rw=randrw --bs=8k --size=64M \
    --number_ios=2000 --fsync=500 --randseed=3 --output="$T/fio.out" || fail "$(cat "$T/fio.out")"; }
summary() { # FILE: what is in it, as text
    "$FOREBAY" trace convert "$1" - --to blkparse 2>"$T/said" >"$T/text" || fail "convert: $(cat "$T/said")"
}

say "two recorders of one volume; one ends by itself, the other one by Ctrl-C"
"$FOREBAY" trace record db --for 1h --to "$T/two.fbtrace" >"$T/two.out" 2>&1 &
two=$!
for seconds in 6 60; do # the second time on a machine that was too busy for the load
    "$FOREBAY" trace record db --for ${seconds}s --to "$T/one.fbtrace" --overwrite >"$T/one.out" 2>&1 &
    one=$!
    eventually 30 recording 2 || fail "there are not two jobs: $("$FOREBAY" jobs)"
    "$FOREBAY" jobs | grep 'record' >/dev/null || fail "jobs do not show it"
    load
    if recording 2; then break; fi
    wait "$one" || true
done
wait "$one" || fail "it did not end well: $(cat "$T/one.out")"
kill -INT "$two"
wait "$two" || fail "Ctrl-C is no failure: $(cat "$T/two.out")"
for name in one two; do
    summary "$T/$name.fbtrace"
    grep -q 'cut off\|lost' "$T/$name.out" && fail "$name: $(cat "$T/$name.out")"
    reads=$(grep -c ' Q *R ' "$T/text") writes=$(grep -c ' Q *W ' "$T/text") flushes=$(grep -c ' Q *FN' "$T/text")
    echo "$name: $reads reads, $writes writes, $flushes flushes"
    [ $((reads + writes)) -ge 2000 ] && [ "$flushes" -ge 1 ] || fail "requests of fio are missing: $(cat "$T/$name.out" "$T/fio.out")"
    grep -q 'not kept: which way it went' "$T/said" || fail "there are no outcomes: $(cat "$T/said")"
    grep -q 'how long it took' "$T/said" || fail "there are no latencies"
done

say "what-if and replay take it"
"$FOREBAY" what-if --trace "$T/one.fbtrace" --cache 32MiB >"$T/out" || fail "what-if"
"$FOREBAY" trace replay "$T/one.fbtrace" --to db --asap --depth 4 >"$T/out" || fail "replay: $(cat "$T/out")"
grep -q 'recorded mean' "$T/out" || grep -q 'recorded' "$T/out" || fail "nothing of what was recorded: $(cat "$T/out")"
grep -q 'only reads are replayed' "$T/out" || fail "writes were replayed without consent"

say "cancelled by another command, and by the size"
"$FOREBAY" trace record db --for 1h --to "$T/three.fbtrace" >"$T/out" 2>&1 &
three=$!
eventually 30 recording 1 || fail "it does not run"
"$FOREBAY" jobs "$(jobs_running)" --cancel >/dev/null || fail "cancel"
if wait "$three"; then fail "a cancelled recording is a success"; fi
grep -q 'was cancelled' "$T/out" || fail "$(cat "$T/out")"
summary "$T/three.fbtrace"
"$FOREBAY" trace record db --for 1h --max-size 8KiB --to "$T/small.fbtrace" >"$T/out" 2>&1 &
small=$!
eventually 30 recording 1 || fail "it does not run"
load
wait "$small" || fail "$(cat "$T/out")"
[ "$(stat -c %s "$T/small.fbtrace")" -le 8192 ] || fail "it is larger than was asked for"
summary "$T/small.fbtrace"

say "detached meanwhile"
"$FOREBAY" trace record other --for 1h --to "$T/gone.fbtrace" >"$T/out" 2>&1 &
gone=$!
eventually 30 recording 1 || fail "it does not run"
"$FOREBAY" volume detach other >/dev/null || fail "detach"
if wait "$gone"; then fail "the volume has gone"; fi
grep -q 'not attached any more' "$T/out" || fail "$(cat "$T/out")"
"$FOREBAY" trace convert "$T/gone.fbtrace" "$T/gone.csv" >"$T/said" || fail "it is not readable"
grep -q 'cut off' "$T/said" && fail "it is not whole"

say "formats over pipes"
"$FOREBAY" trace convert "$T/one.fbtrace" - --to msr 2>/dev/null | "$FOREBAY" trace convert - "$T/back.alibaba" --from msr >/dev/null || fail "pipes"
[ "$(wc -l <"$T/back.alibaba")" -ge 2000 ] || fail "requests are missing"
refuses() { # WORDS ARGUMENTS...
    local words=$1
    shift
    if "$FOREBAY" "$@" >"$T/refused" 2>&1; then fail "$* was not refused"; fi
    grep -q -- "$words" "$T/refused" || fail "$* says: $(cat "$T/refused")"
}
refuses 'is there already' trace convert "$T/one.fbtrace" "$T/back.alibaba"
printf '1,R,0,4096,5\n1,X,0,4096,6\n' >"$T/bad.alibaba"
refuses 'line 2, column 3' trace convert "$T/bad.alibaba" "$T/bad.bin"
[ ! -e "$T/bad.bin" ] || fail "half a conversion stays"
refuses 'No space left' trace convert "$T/one.fbtrace" /dev/full --to bin
refuses 'no volume' trace record nothing --for 1s --to "$T/nothing.fbtrace"
[ ! -e "$T/nothing.fbtrace" ] || fail "a file of nothing stays"
refuses 'is there already' trace record db --for 1s --to "$T/one.fbtrace"
refuses '1 to 2592000' trace record db --for 31d --to "$T/long.fbtrace"
refuses 'while it is read' trace convert "$T/one.fbtrace" "$T/one.fbtrace" --overwrite
refuses 'does not tell a format' trace convert "$T/one.fbtrace" "$T/x"

say "the daemon is killed"
"$FOREBAY" trace record db --for 1h --to "$T/killed.fbtrace" >"$T/out" 2>&1 &
killed=$!
eventually 30 recording 1 || fail "it does not run"
load
is_written() { # what is recorded follows within about a second
    "$FOREBAY" trace convert "$T/killed.fbtrace" "$T/killed.bin" --overwrite >/dev/null 2>&1 && [ "$(stat -c %s "$T/killed.bin")" -ge $((2000 * 24)) ]
}
sleep 1
eventually 20 is_written || fail "it is not written while it runs"
crash
if wait "$killed"; then fail "the daemon was killed"; fi
"$FOREBAY" trace convert "$T/killed.fbtrace" "$T/killed.bin" --overwrite >"$T/said" || fail "it is not readable: $(cat "$T/said")"
grep -q 'was cut off' "$T/said" || fail "it does not say so: $(cat "$T/said")"
[ "$(stat -c %s "$T/killed.bin")" -ge $((2000 * 24)) ] || fail "what came before is missing"
say "passed"

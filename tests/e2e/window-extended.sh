#!/usr/bin/env bash
# kill -9 while the append window is extended between checkpoints, then damage to copies of the extension: nothing is
# lost, and `forebay check` names the damage. With both copies of a slot gone the segments say which of them were added.
. "$(dirname "$0")/lib.sh"
need python3

make_backing 96M
CACHE_SIZE=48MiB

metric() { # NAME: a counter of the pool, as the volume's statistics have it
    "$FOREBAY" stats --admin "$T/admin.sock" --json | python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"
}

damage() { # BLOCK: one bit of it
    python3 - "$CACHE" "$1" <<'PY'
import sys
with open(sys.argv[1], "r+b") as cache:
    cache.seek(int(sys.argv[2]) * 4096 + 99)
    byte = cache.read(1)[0]
    cache.seek(-1, 1)
    cache.write(bytes([byte ^ 1]))
PY
}

round=0
for blocks in "" "4" "24" "4 20" "8 24" "4 8 20 24"; do
    round=$((round + 1))
    start --admin "$T/admin.sock" --set dirty_low_pct=5
    if [ "$round" -gt 1 ]; then writer verify || fail "blocks '$damaged' were damaged: lost or wrong data"; fi
    before=$(metric window_extensions) written=$(metric writes)
    writer write --seconds 60 --seed "$round" >"$T/writer.out" 2>&1 &
    WRITER=$!
    for ((tries = 0; tries < 600; tries++)); do
        extended=$(($(metric window_extensions) - before))
        # What the reads before led to extends it as well: the writer has to be at work.
        if { [ "$extended" -gt 20 ] && [ "$(metric writes)" -gt "$written" ]; } || ! kill -0 "$WRITER" 2>/dev/null; then break; fi
        sleep 0.1
    done
    [ "$extended" -gt 20 ] || { cat "$T/writer.out"; fail "the window was extended $extended times"; }
    crash
    wait "$WRITER" || { cat "$T/writer.out"; fail "round $round"; }
    damaged=$blocks
    for block in $blocks; do damage "$block"; done
    if [ -z "$blocks" ]; then
        "$FOREBAY" check "$CACHE" >"$T/check.out" || { cat "$T/check.out"; fail "check finds fault with a killed cache"; }
    else
        "$FOREBAY" check "$CACHE" >"$T/check.out" && fail "check finds nothing though blocks $blocks are damaged"
        for block in $blocks; do
            grep -q "block $block" "$T/check.out" || { cat "$T/check.out"; fail "check does not name block $block"; }
        done
        if [ "$round" -eq 5 ]; then say "$(cat "$T/check.out")"; fi
    fi
    say "round $round: $extended extensions, blocks '$blocks' damaged: $(tail -n 1 "$T/writer.out")"
done
start
writer verify || fail "blocks '$damaged' were damaged: lost or wrong data"
crash
"$FOREBAY" check "$CACHE" >"$T/check.out" || { cat "$T/check.out"; fail "the start has not repaired what was damaged"; }
start
writer verify || fail "lost or wrong data after the last kill"
stop

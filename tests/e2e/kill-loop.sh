#!/usr/bin/env bash
# kill -9 in the middle of writes, again and again: what was acknowledged is there, and what was lost stays lost.
# KILLS=50 for the long run. With a cache smaller than the volume, so that destage and reclaim are under way as well.
. "$(dirname "$0")/lib.sh"
need python3

KILLS=${KILLS:-5}
MODES=(writeback writeback writeonly writethrough writearound)
make_backing 96M
CACHE_SIZE=32MiB

for ((round = 1; round <= KILLS; round++)); do
    mode=${MODES[(round - 1) % ${#MODES[@]}]}
    start --mode "$mode" --set dirty_low_pct=5
    if [ "$round" -gt 1 ]; then
        writer verify || fail "round $round: lost or wrong data after kill -9"
    fi
    : >"$T/writer.out"
    writer write --seconds 60 --seed "$round" >"$T/writer.out" 2>&1 &
    WRITER=$!
    # On a busy machine the writer may take longer to start than the pause below.
    for ((tries = 0; tries < 600; tries++)); do
        if grep -q '^connected' "$T/writer.out" || ! kill -0 "$WRITER" 2>/dev/null; then break; fi
        sleep 0.05
    done
    sleep "$((RANDOM % 3)).$((RANDOM % 10))$((RANDOM % 10))"
    kill -0 "$WRITER" 2>/dev/null || { cat "$T/writer.out"; fail "round $round: the writer ended too early"; }
    crash
    wait "$WRITER" || { cat "$T/writer.out"; fail "round $round"; }
    say "kill $round, $mode: $(tail -n 1 "$T/writer.out")"
done

say "the last round, then an orderly stop, and the offline check agrees"
start
writer verify || fail "lost or wrong data after kill -9"
writer write --seconds 2 --seed 0
stop
"$FOREBAY" check "$CACHE" || fail "forebay check finds fault with the cache"
start
writer verify || fail "lost or wrong data after an orderly stop"
stop

#!/usr/bin/env bash
# discard_freed: what holds nothing is punched out of a cache file, and kill -9 beside that loses nothing.
. "$(dirname "$0")/lib.sh"
need python3

make_backing 96M
CACHE_SIZE=48MiB

metric() { # NAME: a counter of the pool, as the volume's statistics have it
    "$FOREBAY" stats --admin "$T/admin.sock" --json | python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"
}

taken() { # KiB that the cache takes of its file system
    du --block-size=1K "$CACHE" | cut -f1
}

start --admin "$T/admin.sock" --set dirty_low_pct=5 --set discard_freed=on
for ((tries = 0; tries < 300; tries++)); do
    [ "$(metric cache_discards)" -gt 20 ] && break
    sleep 0.1
done
full=$((48 * 1024))
[ "$(taken)" -lt $((full * 3 / 4)) ] || fail "an empty cache with discards takes $(taken) of $full KiB"
say "an empty cache takes $(taken) of $full KiB after $(metric cache_discards) discards"
crash

for seed in 1 2 3; do
    start --admin "$T/admin.sock" --set dirty_low_pct=5 --set discard_freed=on
    if [ "$seed" -gt 1 ]; then writer verify || fail "lost or wrong data"; fi
    writer write --seconds 60 --seed "$seed" >"$T/writer.out" 2>&1 &
    WRITER=$!
    before=$(metric window_extensions)
    for ((tries = 0; tries < 600; tries++)); do
        extended=$(($(metric window_extensions) - before)) discards=$(metric cache_discards)
        if { [ "$extended" -gt 20 ] && [ "$discards" -gt 20 ]; } || ! kill -0 "$WRITER" 2>/dev/null; then break; fi
        sleep 0.1
    done
    [ "$(metric cache_discard_errors)" = 0 ] || fail "discards fail"
    crash
    wait "$WRITER" || { cat "$T/writer.out"; fail "round $seed"; }
    [ "$discards" -gt 20 ] || fail "$discards discards"
    say "round $seed: $extended extensions, $discards discards"
done
"$FOREBAY" check "$CACHE" >"$T/check.out" || { cat "$T/check.out"; fail "check finds fault with a killed cache"; }
start
writer verify || fail "lost or wrong data after the last kill"
stop

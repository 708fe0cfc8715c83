#!/usr/bin/env bash
# Bytes of the cache file change at rest, one in a clean block and one in a dirty one: a scrub finds both, fetches the clean
# one from the backing store, and reports the dirty one, whose sectors answer with errors. Nobody reads wrong data.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/spoil-lib.sh"
need qemu-io

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
client() { qemu-io -f raw "$@" "$DB" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
scrub() { timeout 60 "$FOREBAY" pool scrub fast --rate 1GiB --admin "$ADMIN" >"$T/scrub.out" 2>&1; }
told() { ask events --after oldest --kind pool.scrubbed && grep -q "$1" "$T/ask.out"; }

say "8 MiB clean, 8 MiB dirty, nothing damaged"
client -c "write -P 0x61 0 8M" -c flush
timeout 60 "$FOREBAY" flush db --admin "$ADMIN" >"$T/flush.out" 2>&1 || fail "$(cat "$T/flush.out")"
client -c "write -P 0x62 8M 8M" -c flush
scrub || fail "a scrub of a sound cache failed: $(cat "$T/scrub.out")"
grep -q '16.* compared' "$T/scrub.out" || fail "it did not compare all: $(cat "$T/scrub.out")"

say "one clean block damaged"
spoil 0x61 first >/dev/null
scrub || fail "a clean block is not lost: $(cat "$T/scrub.out")"
eventually 20 told '1 blocks damaged: 1 fetched again, 0 dirty' || fail "not told: $(cat "$T/ask.out")"
scrub || fail "once more: $(cat "$T/scrub.out")"
client -c "read -P 0x61 0 8M"
grep -q 'Pattern verification failed' "$T/qemu-io.out" && fail "wrong data: $(cat "$T/qemu-io.out")"

say "one dirty block damaged"
spoil 0x62 first >/dev/null
if scrub; then fail "a dirty block was damaged, and the scrub succeeded"; fi
grep -q '4KiB.* nobody else' "$T/scrub.out" || fail "not told: $(cat "$T/scrub.out")"
lost() { ask alarms && grep -q 'LOST: 4KiB in 1 range of db, from byte 8388608 on' "$T/ask.out"; }
eventually 20 lost || fail "no alarm: $(cat "$T/ask.out")"
if qemu-io -f raw -r -c "read -P 0x62 8M 8M" "$DB" >"$T/qemu-io.out" 2>&1; then fail "what is lost was read"; fi
grep -q 'Pattern verification failed' "$T/qemu-io.out" && fail "wrong data: $(cat "$T/qemu-io.out")"
if qemu-io -f raw -c flush "$DB" >"$T/qemu-io.out" 2>&1; then fail "no FLUSH told of the loss"; fi
client -c "write -P 0x63 8M 8M" -c flush -c "read -P 0x63 8M 8M"
scrub || fail "everything was written anew: $(cat "$T/scrub.out")"

say "a scrub can be cancelled, and only one runs"
id=$("$FOREBAY" pool scrub fast --rate 64KiB --background --admin "$ADMIN") || fail "no job: $id"
refused 1 'scrub' "$FOREBAY" pool scrub fast --admin "$ADMIN"
refused '1|2' 'at least' "$FOREBAY" pool scrub fast --rate 1KiB --admin "$ADMIN"
"$FOREBAY" jobs "$(grep -o 'j[0-9]*' <<<"$id" | head -1)" --cancel --admin "$ADMIN" >"$T/cancel.out" 2>&1 || fail "$(cat "$T/cancel.out")"
tries=100
until "$FOREBAY" pool scrub fast --rate 1GiB --admin "$ADMIN" >"$T/scrub.out" 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "the cancelled one does not end: $(cat "$T/scrub.out")"
    sleep 0.1
done
say "found, fetched, reported"

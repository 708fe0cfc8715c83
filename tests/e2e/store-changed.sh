#!/usr/bin/env bash
# A backing store that somebody else writes to after the daemon was killed: its clean blocks are dropped, and with dirty
# data it is refused, until the operator says on the running daemon what is to become of them. One that nobody wrote to is
# served as it was, also if the kill came in the middle of writing back, or its permissions have changed.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need qemu-io python3

DB="nbd+unix:///db?socket=$T/nbd.sock"
STORE=$T/db.img
PATH_OF_STORE=$STORE
configure() { # [setting...]
    config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$PATH_OF_STORE"
exports = ["$DB"]
admission = "always"
$(printf '%s\n' "$@")
END
}
LAZY='idle_delay = "off"'
client() { qemu-io -f raw "$@" "$DB" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
holds() { # PATTERN OFFSET LENGTH: what clients read there
    client -c "read -P $1 $2 $3"
    ! grep -q 'verification failed' "$T/qemu-io.out" || fail "$4: $2 does not hold $1"
}
others_write() { # OFFSET_KIB
    head -c 4096 /dev/zero | tr '\0' '\167' | dd of="$STORE" bs=1024 seek="$1" conv=notrunc status=none
}
value() { # KEY: of the volume
    ask volume show db --json
    python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$T/ask.out" "$1"
}
new_store() {
    rm -f "$T/flash.img" && rm -rf "$T/state"
    head -c 16M /dev/zero | tr '\0' '\21' >"$STORE"
}
# 8 MiB of clean blocks: 2,048, of which a start compares 32. The stop has noted that they are clean: a kill just after the
# flush could make some of them dirty again.
warm() {
    client -c "write -P 0x11 0 8M" -c flush
    ask flush db
    unserve
    serve
}
refuses() { # WHY: the volume is not served, and an alarm says so
    ask alarms --json
    grep -q '"volume.failed"' "$T/ask.out" || fail "$1: no alarm"
    if grep -q "tried again until" "$T/ask.out"; then fail "$1: nobody tries it again: $(cat "$T/ask.out")"; fi
    logged 'was changed'
}

say "nobody wrote: everything stays cached"
new_store
configure "$LAZY"
serve
warm
client -c "write -P 0x22 8M 1M" -c flush
crash
serve
[ "$(value cached_bytes)" -ge $((9 << 20)) ] || fail "only $(value cached_bytes) bytes are cached after a crash"
[ "$(value dirty_bytes)" -eq $((1 << 20)) ] || fail "dirty: $(value dirty_bytes)"

say "only its permissions changed: that is no change of its data"
crash
chmod 600 "$STORE"
serve
[ "$(value dirty_bytes)" -eq $((1 << 20)) ] || fail "dirty: $(value dirty_bytes)"
holds 0x22 8M 1M "after chmod"

say "4 KiB written by others at once after the kill: refused while dirty"
holds 0x11 0 8M "warm"
crash
others_write 1028
serve
refuses "dirty data, and the store was changed"

say "the way out is the one that the message tells"
ask set db on_backing_change=keep-dirty
ask volume attach db
holds 0x77 1028k 4k "a clean block that others wrote over"
holds 0x22 8M 1M "dirty data kept"
ask set db on_backing_change=
unserve

say "nothing dirty: served, and the new bytes are read"
new_store
configure "$LAZY"
serve
warm
crash
others_write 2052
serve
holds 0x77 2052k 4k "a clean block that others wrote over"
crash

say "discard-dirty, by a change of the file and a reload"
new_store
configure "$LAZY"
serve
warm
client -c "write -P 0x22 8M 1M" -c flush
crash
others_write 3076
serve
refuses "dirty data, and the store was changed"
configure "$LAZY" 'on_backing_change = "discard-dirty"'
ask reload
holds 0x11 8M 1M "dirty data given up"
holds 0x77 3076k 4k "what others wrote"
unserve

say "given up by detach --discard, without being served"
new_store
configure "$LAZY"
serve
client -c "write -P 0x22 8M 1M" -c flush
crash
others_write 4100
serve
refuses "dirty data, and the store was changed"
refused '[1-9]' 'dirty' "$FOREBAY" volume detach db --admin "$ADMIN"
ask volume detach db --discard
ask pool show fast
grep -q 'not attached' "$T/ask.out" && fail "the volume is still there: $(cat "$T/ask.out")"
unserve

say "killed while it writes back, and nobody else wrote: never refused"
new_store
configure 'idle_delay = "10ms"' 'dirty_low_pct = 0' 'max_destage_bandwidth = "4MiB"'
for round in 1 2 3 4 5 6; do
    serve
    ask alarms --json
    if grep -q '"volume.failed"' "$T/ask.out"; then fail "round $round: $(cat "$T/ask.out")"; fi
    client -c "write -P $round 8M 3M" -c flush
    sleep "0.$((round * 2 % 10))"
    crash
done
serve
holds 6 8M 3M "what was written last"
unserve

command -v losetup >/dev/null && command -v mkfs.ext4 >/dev/null || { say "no loop devices: the rest is left out"; exit 0; }
truncate -s 16M "$T/disk.img"
LOOP=$(losetup -f --show "$T/disk.img" 2>/dev/null) || { say "no loop devices: the rest is left out"; exit 0; }
on_exit "losetup -d $LOOP"
STORE=$LOOP PATH_OF_STORE=$LOOP

say "a block device that nobody wrote to"
rm -f "$T/flash.img" && rm -rf "$T/state"
mkfs.ext4 -q -F "$LOOP"
configure "$LAZY"
serve
client -c "write -P 0x22 8M 1M" -c flush -c "read 0 4M"
crash
serve
[ "$(value dirty_bytes)" -eq $((1 << 20)) ] || fail "dirty: $(value dirty_bytes)"

say "a block device that was mounted meanwhile"
crash
mkdir -p "$T/mnt"
mount "$LOOP" "$T/mnt"
on_exit "umount -l $T/mnt"
unmount "$LOOP" "$T/mnt"
serve
refuses "a file system was mounted from the store"
crash

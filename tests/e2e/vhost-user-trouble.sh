#!/usr/bin/env bash
# Trouble around a Linux guest with a file system over vhost-user: the guest loses its power in the middle of writes; the backing store
# hangs, also over a stop and a kill of the daemon; it fails; the cache device dies with a little that only it has. The guest waits
# or sees an error, as with a disk. What was fsynced is there, and nothing reads wrong.
#
# The store is a file of another daemon: it hangs while that one is stopped, and fails while that one's own store has no bytes.
# Runs in a guest.
. "$(dirname "$0")/lib.sh"

if [ -n "${IN_GUEST:-}" ]; then
    MOUNT=/run/mnt OUT=/run/out DISK=/dev/vda
    mkdir -p "$MOUNT"
    stage() { echo "$1" >"$OUT/stage"; }
    await() { eventually 120 test -e "$OUT/$1" || fail "nobody says '$1'"; }
    # The bytes that file NUMBER has.
    numbered() (
        set +o pipefail
        yes "file $1" | head -c 65536
    )
    get() { timeout 100 dd if="$1" bs=1M iflag=direct status=none | sha256sum | cut -d' ' -f1; }
    put() { timeout 100 dd if="$1" of="$2" bs=1M oflag=direct conv=notrunc,fsync status=none; }
    is() { [ "$(get "$1")" = "$(checksum "$2")" ] || fail "$3"; }
    no_errors() { if dmesg | grep -E 'I/O error|EXT4-fs error'; then fail "the guest's kernel met I/O errors: $1"; fi; }
    mount -o noatime "$DISK" "$MOUNT" || fail "the file system"

    if [ "$PHASE" = cut ]; then
        while :; do dd if=/dev/zero of="$MOUNT/noise" bs=64k count=64 oflag=direct conv=notrunc status=none; done &
        for ((number = 1; ; number++)); do
            numbered "$number" | dd of="$MOUNT/numbered-$number" conv=fsync status=none || fail "file $number"
            echo "$number" >>"$OUT/synced"
        done
    fi

    while read -r number; do
        numbered "$number" | cmp - "$MOUNT/numbered-$number" || fail "file $number was fsynced before the power cut, and is not there"
    done <"$OUT/synced"
    random_file /run/one 8
    random_file /run/two 8
    put /run/one "$MOUNT/hot"
    sync -f "$MOUNT"

    stage warm
    await hanging
    get "$MOUNT/cold" >/run/cold.out &
    READER=$!
    put /run/two "$MOUNT/hot" || fail "a write of what is cached, while the store hangs"
    is "$MOUNT/hot" /run/two "a hit while the store hangs"
    kill -0 "$READER" || fail "the miss does not wait: $(cat /run/cold.out)"
    stage stop
    await stopped
    wait "$READER" || fail "the read over a stop"
    [ "$(cat /run/cold.out)" = "$COLD" ] || fail "a miss over a stop: $(cat /run/cold.out)"
    is "$MOUNT/hot" /run/two "a write that was acknowledged before the stop"

    stage again
    await hanging-again
    put /run/one "$MOUNT/hot" || fail "a write of what is cached, while the store hangs"
    stage kill
    await killed
    put /run/two "$MOUNT/hot" &
    WRITER=$!
    stage waits
    wait "$WRITER" || fail "a write over a kill"
    is "$MOUNT/hot" /run/two "a write over a kill"
    no_errors "a store that hung"

    sync -f "$MOUNT"
    stage flushed
    await failing
    put /run/one "$MOUNT/hot" || fail "a write of what is cached, while the store fails"
    is "$MOUNT/hot" /run/one "a hit while the store fails"
    dmesg -C
    dd if="$DISK" of=/dev/null bs=1M skip=120 count=4 iflag=direct status=none 2>/run/miss.err && fail "a miss on a store that fails is no error"
    grep -q "Input/output error" /run/miss.err || fail "a miss says: $(cat /run/miss.err)"
    dmesg -C
    stage failed
    await well
    [ "$(get "$MOUNT/cold")" = "$COLD" ] || fail "a miss after the store is well again"
    no_errors "a store that failed"

    # The last MiB of the device belongs to no file, and only the cache will have it.
    LAST=$(($(blockdev --getsize64 "$DISK") / (1 << 20) - 1))
    last() { dd "$@" bs=1M count=1 status=none; }
    head -c 1M /run/two >/run/last
    sync -f "$MOUNT"
    stage clean
    await written-back
    last if=/run/last of="$DISK" seek="$LAST" oflag=direct || fail "a write past the file system"
    stage dirty
    await dead
    last if="$DISK" of=/run/read skip="$LAST" iflag=direct 2>/dev/null && fail "what only the dead cache had is read"
    # One FLUSH tells it; it had better not be one of the file system's, which would stop writing then.
    sync "$DISK" 2>/dev/null && fail "no FLUSH tells that something is lost"
    is "$MOUNT/hot" /run/one "the hot file without a cache"
    [ "$(get "$MOUNT/cold")" = "$COLD" ] || fail "the cold file without a cache"
    verifies_files dead "$MOUNT" 3 || { cat "$T/fio-dead.out"; fail "fio on a cache that has died"; }
    # A write over what is lost heals it.
    heals() { last if=/run/last of="$DISK" seek="$LAST" oflag=direct 2>/dev/null; }
    eventually 60 heals || fail "what is lost cannot be written again"
    last if="$DISK" of=/run/read skip="$LAST" iflag=direct && cmp /run/last /run/read || fail "what was written again"
    if dmesg | grep 'EXT4-fs error'; then fail "the file system met errors"; fi
    umount "$MOUNT" || fail "the file system cannot be unmounted"
    exit 0
fi

. "$E2E/serve-lib.sh"
[ "$(id -u)" -eq 0 ] || skip "the guest is made as root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
"$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
need mkfs.ext4 fsck.ext4 debugfs fio

DISK=$T/disk.img
mkdir "$T/files" "$T/slow" "$T/flash"
random_file "$T/files/cold" 16
COLD=$(checksum "$T/files/cold")
truncate -s 160M "$DISK"
mkfs.ext4 -q -d "$T/files" -E lazy_itable_init=0,lazy_journal_init=0 "$DISK" $((159 << 10))
"$FOREBAY" run --io psync --mode passthrough --backing "file:$DISK" --cache "$T/other.img:64MiB" --export "fuse:$T/slow/disk.img" >"$T/other.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs TERM $OTHER; umount -l $T/slow"
eventually 60 test -e "$T/slow/disk.img" || fail "the store is not there: $(cat "$T/other.out")"
mount -t tmpfs -o size=100M tmpfs "$T/flash" || skip "no tmpfs may be mounted here"
on_exit "umount -l $T/flash"
config <<END
[pool.fast]
devices = [{ path = "$T/flash/cache.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/slow/disk.img"
exports = ["vhost-user:$T/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END
serve

boot() { # PHASE
    rm -f "$T/out/stage"
    "$ROOT/tests/guest/run" --vhost-user "$T/db.sock" --limit 280 --out "$T/out" "$0" IN_GUEST=1 PHASE="$1" COLD="$COLD" \
        FOREBAY="$FOREBAY" >"$T/guest.out" 2>&1 &
    GUEST=$!
    on_exit "kill_jobs TERM $GUEST"
}
runs() { kill -0 "$GUEST" 2>/dev/null; }
is_at() { ! runs || [ "$(cat "$T/out/stage" 2>/dev/null)" = "$1" ]; }
reaches() { # STAGE
    eventually 200 is_at "$1" || fail "the guest does not come to '$1'"
    runs || { cat "$T/guest.out"; fail "the guest ended before '$1'"; }
}
tell() { touch "$T/out/$1"; }
hang() { kill -STOP "$OTHER"; }
answer() { kill -CONT "$OTHER"; }
has_synced() { ! runs || [ "$(wc -l 2>/dev/null <"$T/out/synced" || echo 0)" -ge 20 ]; }
alarmed() { ask alarms; grep -q "$1" "$T/ask.out"; }
no_alarm() { ! alarmed "writing db back"; }

say "the guest loses its power in the middle of writes"
boot cut
eventually 200 has_synced || fail "the guest does not write"
runs || { cat "$T/guest.out"; fail "the guest ended before its power went"; }
kill -9 "$(cat "$T/out/pid")"
wait "$GUEST" || true
FIRST=$DAEMON
boot trouble
reaches warm
[ "$DAEMON" = "$FIRST" ] && kill -0 "$DAEMON" || fail "the daemon did not outlive its guest"

say "the store hangs, and the daemon is stopped meanwhile"
hang
tell hanging
reaches stop
kill -TERM "$DAEMON"
eventually 60 test ! -e "/proc/$DAEMON/exe" || fail "the daemon does not end"
wait "$DAEMON" && fail "what is not closed is told as closed"
answer
serve
tell stopped

say "killed while it hangs"
reaches again
hang
tell hanging-again
reaches kill
crash
tell killed
reaches waits
answer
serve

say "the store fails, and is well again"
reaches flushed
ask flush db
hang
cp --sparse=always "$DISK" "$T/kept.img"
truncate -s 0 "$DISK"
answer
tell failing
reaches failed
timeout 5 "$FOREBAY" flush db --admin "$ADMIN" >"$T/flush.out" 2>&1 && fail "what cannot be written back is written back"
eventually 20 alarmed "writing db back" || fail "no alarm: $(cat "$T/ask.out")"
hang
cp --sparse=never "$T/kept.img" "$DISK"
answer
ask flush db
eventually 60 no_alarm || fail "the alarm stays: $(cat "$T/ask.out")"
tell well

say "the cache device dies with one MiB that only it has"
reaches clean
ask flush db
tell written-back
reaches dirty
eventually 10 cut_off "$T/flash/cache.img" 1M || fail "the cache file cannot be taken away"
tell dead
wait "$GUEST" || { cat "$T/guest.out"; fail "the guest"; }
alarmed "cache" || fail "no alarm: $(cat "$T/ask.out")"
logged "LOST: "

say "the store has every file"
ask flush db
crash
fsck.ext4 -f -n "$DISK" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "the file system is damaged"; }
debugfs -R "dump /cold $T/cold" "$DISK" 2>/dev/null
assert_same "$T/files/cold" "$T/cold" "in the store"

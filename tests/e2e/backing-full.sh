#!/usr/bin/env bash
# A backing store that takes no more data for a while: nothing fails for the client, the alarm is raised, dirty data is
# kept; when there is room again it is written back, and the alarm is cleared.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need fio qemu-io mount

mkdir "$T/small"
mount -t tmpfs -o size=16M tmpfs "$T/small" || skip "no tmpfs may be mounted here"
on_exit "umount -l $T/small"
truncate -s 64M "$T/small/disk.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "256MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/small/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
END
serve

DB="nbd+unix:///db?socket=$T/nbd.sock"
alarms() {
    ask alarms --json
    grep -c destage.failed "$T/ask.out" || true
}
alarms_are() { [ "$(alarms)" = "$1" ]; }
flushed() { timeout "${1:-60}" "$FOREBAY" flush db --admin "$ADMIN" >"$T/flush.out" 2>&1; }
client() { qemu-io -f raw "$@" "$DB" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
say "48 MiB for a backing store that has room for 16"
client -c "write -P 0x51 0 24M" -c "write -P 0x52 24M 24M" -c flush
if flushed 8; then fail "the flush of a full backing store succeeded"; fi
eventually 20 alarms_are 1 || fail "no alarm: $(cat "$T/ask.out")"
client -c "read -P 0x51 0 24M" -c "read -P 0x52 24M 24M"
grep -q 'Pattern verification failed' "$T/qemu-io.out" && fail "wrong data: $(cat "$T/qemu-io.out")"

say "room again"
mount -o remount,size=96M "$T/small"
eventually 60 flushed || fail "nothing is written back: $(cat "$T/flush.out")"
eventually 20 alarms_are 0 || fail "the alarm stays: $(cat "$T/ask.out")"
head -c 24M /dev/zero | tr '\0' '\121' >"$T/expected"
head -c 24M /dev/zero | tr '\0' '\122' >>"$T/expected"
cmp -n 48M "$T/expected" "$T/small/disk.img" || fail "wrong data written back"
say "written back whole, alarm cleared"

#!/usr/bin/env bash
# Trouble under a block device of ours (ublk:) with a mounted file system: a backing store that hangs, also over a stop and a kill of
# the daemon; one that fails; a cache device that dies with nothing dirty in it; a backing store that is full. Whoever uses the
# device waits or sees an error, as with a disk. Nothing that was acknowledged is lost, and nothing reads wrong.
#
# Runs in the guest (tests/guest): devices are made to hang and to fail with device mapper.
# Runs in a guest.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"

GUEST_SECONDS=280
if [ -z "${IN_GUEST:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "the guest has the files of this user, and what it does needs root's"
    "$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
    code=0
    "$ROOT/tests/guest/run" --limit "$GUEST_SECONDS" --memory 2G "$E2E/ublk-trouble.sh" IN_GUEST=1 FOREBAY="$FOREBAY" READY_SECONDS=60 || code=$?
    exit "$code"
fi

DEVICE=/dev/forebay/db MOUNT=$T/mnt
mkdir "$MOUNT" "$T/small"
on_exit 'dmsetup resume disk; dmsetup resume flash; kill -9 $DAEMON; sleep 1; "$FOREBAY" ublk remove db --force'

# mapped NAME MIB: /dev/mapper/NAME on a file of its own.
declare -A SECTORS LOOPS
mapped() {
    truncate -s "$2M" "$T/$1.img"
    LOOPS[$1]=$(losetup --find --show "$T/$1.img")
    SECTORS[$1]=$(($2 * 2048))
    dmsetup create "$1" --table "0 ${SECTORS[$1]} linear ${LOOPS[$1]} 0"
}
switch() { # NAME linear|error: in place of what it is
    local table="0 ${SECTORS[$1]} error"
    [ "$2" = error ] || table="0 ${SECTORS[$1]} linear ${LOOPS[$1]} 0"
    dmsetup suspend --nolockfs "$1"
    dmsetup load "$1" --table "$table"
    dmsetup resume "$1"
}
mapped disk 160
mapped flash 64
mount -t tmpfs -o size=24M tmpfs "$T/small"
on_exit "umount -l $T/small"
truncate -s 64M "$T/small/disk.img"
config <<END
[pool.fast]
devices = ["/dev/mapper/flash"]

[volume.db]
pool = "fast"
backing = "/dev/mapper/disk"
exports = ["ublk:"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END

# Past the page cache, and within a time in which nothing that works is late.
get() { timeout 60 dd if="$1" bs=1M iflag=direct status=none | sha256sum | cut -d' ' -f1; }
put() { timeout 60 dd if="$1" of="$2" bs=1M oflag=direct conv=notrunc,fsync status=none; }
no_errors() {
    if dmesg | grep -E 'ublkb.*I/O error|EXT4-fs error|Buffer I/O.*ublk'; then fail "the kernel met I/O errors: $1"; fi
}
device_number() { readlink "$DEVICE" | sed 's|.*/ublkb||'; }

alarmed() { ask alarms; grep -Eq "writing (db|small) back|fast" "$T/ask.out"; }
no_alarm() { ! alarmed; }

say "a file system; what was there before the daemon is not in the cache"
mkfs.ext4 -q /dev/mapper/disk
mount /dev/mapper/disk "$MOUNT"
random_file "$MOUNT/cold" 24
COLD=$(get "$MOUNT/cold")
umount "$MOUNT"
serve
ask pool open fast --force # it is no new file: only the operator knows that nothing on it is needed
eventually 20 test -b "$DEVICE" || fail "$DEVICE is not there"
NUMBER=$(device_number)
mount "$DEVICE" "$MOUNT"
on_exit "umount -l $MOUNT"
random_file "$T/one" 8
random_file "$T/two" 8
cp "$T/one" "$MOUNT/hot"
sync -f "$MOUNT"

say "the backing store hangs: hits and writes go on, a miss waits"
dmsetup suspend --noflush --nolockfs disk
(get "$MOUNT/cold" >"$T/cold.out" 2>&1) &
READER=$!
put "$T/two" "$MOUNT/hot" || fail "a write of what is cached, while the store hangs"
[ "$(get "$MOUNT/hot")" = "$(checksum "$T/two")" ] || fail "a hit while the store hangs"
kill -0 "$READER" || fail "the miss does not wait: $(cat "$T/cold.out")"

say "a stop meanwhile: the daemon ends, and the device stays for those who wait"
kill -TERM "$DAEMON"
eventually 60 test ! -e "/proc/$DAEMON/exe" || fail "the daemon does not end"
wait "$DAEMON" && fail "what is not closed is told as closed"
DAEMON=
kill -0 "$READER" || fail "the miss does not wait: $(cat "$T/cold.out")"
dmsetup resume disk
serve
[ "$(device_number)" = "$NUMBER" ] || fail "it is another device"
wait "$READER" || fail "the read over a stop"
[ "$(cat "$T/cold.out")" = "$COLD" ] || fail "a miss over a stop: $(cat "$T/cold.out")"
[ "$(get "$MOUNT/hot")" = "$(checksum "$T/two")" ] || fail "a write that was acknowledged before the stop"
no_errors "a store that hung"

say "kill -9 while it hangs"
dmsetup suspend --noflush --nolockfs disk
put "$T/one" "$MOUNT/hot" || fail "a write of what is cached, while the store hangs"
crash
(put "$T/two" "$MOUNT/hot") &
WRITER=$!
sleep 1
dmsetup resume disk
serve
[ "$(device_number)" = "$NUMBER" ] || fail "it is another device"
wait "$WRITER" || fail "a write over a kill"
[ "$(get "$MOUNT/hot")" = "$(checksum "$T/two")" ] || fail "a write over a kill"
no_errors "a kill while the store hung"

say "the backing store fails: a miss is an error, hits and writes go on; and later it is well again"
echo 3 >/proc/sys/vm/drop_caches
ask flush db
switch disk error
put "$T/one" "$MOUNT/hot" || fail "a write of what is cached, while the store fails"
[ "$(get "$MOUNT/hot")" = "$(checksum "$T/one")" ] || fail "a hit while the store fails"
dmesg -C
dd if="$DEVICE" of=/dev/null bs=1M skip=100 count=8 iflag=direct status=none 2>"$T/miss.err" && fail "a miss on a store that fails is no error"
grep -q "Input/output error" "$T/miss.err" || fail "a miss says: $(cat "$T/miss.err")"
timeout 10 "$FOREBAY" flush db --admin "$ADMIN" >"$T/flush.out" 2>&1 && fail "what cannot be written back is written back"
eventually 20 alarmed || fail "no alarm: $(cat "$T/ask.out")"
switch disk linear
dmesg -C
ask flush db
[ "$(get "$MOUNT/cold")" = "$COLD" ] || fail "a miss after the store is well again"
eventually 60 no_alarm || fail "the alarm stays: $(cat "$T/ask.out")"

say "the cache device dies with nothing in it that is nowhere else: the file system goes on"
ask flush db
switch flash error
verifies_files dead "$MOUNT" 6 || { cat "$T/fio-dead.out"; fail "fio on a cache that has died"; }
[ "$(get "$MOUNT/hot")" = "$(checksum "$T/one")" ] || fail "the hot file without a cache"
[ "$(get "$MOUNT/cold")" = "$COLD" ] || fail "the cold file without a cache"
alarmed || fail "no alarm: $(cat "$T/ask.out")"
no_errors "a cache device that died"
umount "$MOUNT"
fsck.ext4 -f -n "$DEVICE" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "the file system is damaged"; }
unserve
[ ! -L "$DEVICE" ] || fail "the name is still there"
fsck.ext4 -f -n /dev/mapper/disk >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "the file system on the store is damaged"; }

say "the backing store is full: the cache takes what it can, and it is written back when there is room"
cat >"$T/forebay.toml" <<END
[daemon]
admin_socket = "$ADMIN"
state_dir = "$T/state2"

[pool.other]
devices = [{ path = "$T/other.img", size = "64MiB" }]

[volume.small]
pool = "other"
backing = "file:$T/small/disk.img"
exports = ["ublk:"]
END
serve
random_file "$T/much" 48
put "$T/much" /dev/forebay/small || fail "a write while the store is full"
eventually 20 alarmed || fail "no alarm: $(cat "$T/ask.out")"
mount -o remount,size=100M "$T/small"
ask flush small
eventually 60 no_alarm || fail "the alarm stays: $(cat "$T/ask.out")"
unserve
cmp -n $((48 << 20)) "$T/much" "$T/small/disk.img" || fail "the store differs from what was written"

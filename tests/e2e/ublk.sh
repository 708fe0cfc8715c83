#!/usr/bin/env bash
# A volume as a block device (ublk:): a file system on it outlives kill -9, restarts and an upgrade of the daemon, without an I/O
# error; it grows while it is mounted; it is not taken away while it is used; and in the end the backing store has every byte.
#
# Where the kernel has no ublk the test runs in a guest (tests/guest). With KERNEL=uml that is user-mode Linux, if one was built
# (bench/kernel-peers/setup): it has a newer kernel, so there the device grows under its file system.
# Runs in a guest.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"

# What the guest takes on a busy machine; less than a test may take.
GUEST_SECONDS=280
in_uml() {
    local linux=${KERNEL_PEERS_DIR:-/var/tmp/forebay-kernel-peers}/linux
    [ -x "$linux" ] || skip "there is no $linux: bench/kernel-peers/setup builds one"
    mkdir "$T/out"
    printf '%s=%q\n' SCRIPT "$E2E/ublk.sh" FOREBAY "$FOREBAY" READY_SECONDS 60 >"$T/out/settings"
    env --unset=TMPDIR timeout --kill-after=5 "$GUEST_SECONDS" "$linux" mem=1G ncpus=2 seccomp=on root=/dev/root \
        rootfstype=hostfs rootflags=/ ro init="$ROOT/bench/kernel-peers/guest/init" con0=null,fd:1 con=null \
        PEERS_DIR="$ROOT/bench/kernel-peers" PEERS_OUT="$T/out" >"$T/console" 2>&1 </dev/null || true
    cat "$T/out/log" 2>/dev/null || tail -n 30 "$T/console"
    exit "$(cat "$T/out/code" 2>/dev/null || echo 1)"
}

if [ ! -e /dev/ublk-control ]; then
    truncate -s 16M "$T/none.img"
    refused 1 "ublk-control
modprobe ublk_drv
NBD or FUSE" "$FOREBAY" run --backing "file:$T/none.img" --cache "$T/none.cache:64MiB" --export ublk:x
    [ "$(id -u)" = 0 ] || skip "the guest has the files of this user, and what it does needs root's"
    [ "${KERNEL:-}" != uml ] || in_uml
    "$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
    code=0
    "$ROOT/tests/guest/run" --limit "$GUEST_SECONDS" --memory 2G "$E2E/ublk.sh" FOREBAY="$FOREBAY" READY_SECONDS=60 || code=$?
    exit "$code"
fi

need mkfs.ext4 fsck.ext4 resize2fs fio blkdiscard fstrim
[ "$(id -u)" = 0 ] || skip "block devices need root"

DEVICE=/dev/forebay/db MOUNT=$T/mnt
truncate -s 160M "$T/db.img"
truncate -s 32M "$T/half.img"
mkdir "$MOUNT"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["ublk:"]
END

# Whatever happens: a device that waits for its daemon would hang whoever comes next.
on_exit 'kill -9 $DAEMON; sleep 1; "$FOREBAY" ublk remove db --force'

device_number() { readlink "$DEVICE" | sed 's|.*/ublkb||'; }
no_errors() {
    if dmesg | grep -E 'I/O error|EXT4-fs error|Buffer I/O'; then fail "the kernel met I/O errors: $1"; fi
}
verified() { verifies_files "$1" "$MOUNT" "$2"; } # NAME SECONDS

say "it is there, with the size and blocks of its backing store"
serve
[ -b "$DEVICE" ] || fail "$DEVICE is not there: $(ls -l /dev/forebay 2>&1)"
[ "$(blockdev --getsize64 "$DEVICE")" = $((160 << 20)) ] || fail "it has $(blockdev --getsize64 "$DEVICE") bytes"
[ "$(blockdev --getss "$DEVICE") $(blockdev --getpbsz "$DEVICE")" = "512 4096" ] || fail "its blocks are others"
ask volume show db
grep -q "$DEVICE" "$T/ask.out" || fail "volume show does not say where it is: $(cat "$T/ask.out")"
grep -q "write back" "/sys/block/ublkb$(device_number)/queue/write_cache" || fail "FLUSH means nothing to it"

say "a file system on it, written and compared"
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" "$MOUNT"
on_exit "umount -l $MOUNT"
verified quiet 3 || { cat "$T/fio-quiet.out"; fail "fio"; }

say "kill -9 under load, twice: nobody meets an error"
NUMBER=$(device_number)
verified load 12 &
LOAD=$!
for _ in 1 2; do
    sleep 2
    crash
    sleep 1
    kill -0 "$LOAD" || fail "the load ended when the daemon did: $(cat "$T/fio-load.out")"
    serve
    [ "$(device_number)" = "$NUMBER" ] || fail "it is another device"
    logged "goes on where another process left it"
done
wait "$LOAD" || { cat "$T/fio-load.out"; fail "the load met an error"; }
no_errors "kill -9"

say "a start that cannot make all exports leaves it alone, and a later attempt goes on"
sync -f "$MOUNT"
ask flush db # or it could not be detached again
crash
cp "$T/forebay.toml" "$T/right.toml"
sed -i "s|^exports = .*|exports = [\"ublk:\", \"nbd+unix:///db?socket=$T/none/db.sock\"]|" "$T/forebay.toml"
serve
logged "cannot export db"
eventually 20 grep -q "/dev/ublkb$NUMBER stays, and its users wait.*$DEVICE is mounted" "$T/stderr" || fail "nothing says so: $(cat "$T/stderr")"
(echo more >"$MOUNT/waits" && sync -f "$MOUNT") &
WRITER=$!
sleep 1
mkdir "$T/none"
ask reload
eventually 60 grep -q 'ready: nbd' "$T/stderr" || fail "the volume is not attached: $(cat "$T/stderr")"
wait "$WRITER" || fail "a write over a failed start"
[ "$(device_number)" = "$NUMBER" ] || fail "it is another device"
cp "$T/right.toml" "$T/forebay.toml"
rm -r "$T/none"
no_errors "a failed start"

say "SIGTERM: it stays for those who use it, and the next start goes on"
random_file "$T/data" 8
cp "$T/data" "$MOUNT/before"
sync -f "$MOUNT"
unserve
grep -q "/dev/ublkb$NUMBER stays, and its users wait.*$DEVICE is mounted" "$T/stderr" || fail "nothing says so: $(cat "$T/stderr")"
(cp "$T/data" "$MOUNT/across" && sync -f "$MOUNT") &
COPY=$!
sleep 1
serve
wait "$COPY" || fail "a copy over the restart"
assert_same "$T/data" "$MOUNT/across" "over a restart"
no_errors "SIGTERM"

say "an upgrade passes it on, under load"
verified upgrade 8 &
LOAD=$!
sleep 1
ask upgrade
SUCCESSOR=$(sed -n 's/^process \([0-9]*\) .*/\1/p' "$T/ask.out")
[ -n "$SUCCESSOR" ] || fail "no successor is named: $(cat "$T/ask.out")"
wait "$DAEMON" || fail "the predecessor ended with code $?"
DAEMON=$SUCCESSOR
on_exit "kill -9 $SUCCESSOR"
wait "$LOAD" || { cat "$T/fio-upgrade.out"; fail "the load met an error"; }
assert_same "$T/data" "$MOUNT/across" "over an upgrade"
no_errors "upgrade"
# A child again, which can be waited for.
kill -TERM "$SUCCESSOR"
eventually 60 test ! -e "/proc/$SUCCESSOR" || fail "the successor does not stop"
DAEMON=
serve

say "it grows under the file system where the kernel can do that, and gives back what is deleted"
truncate -s 192M "$T/db.img"
if [ "$(printf '6.16\n%s\n' "$(uname -r)" | sort -V | head -n 1)" = 6.16 ]; then
    ask volume resize db 192MiB
    [ "$(blockdev --getsize64 "$DEVICE")" = $((192 << 20)) ] || fail "it has $(blockdev --getsize64 "$DEVICE") bytes"
    resize2fs "$DEVICE" >/dev/null 2>&1 || fail "the file system does not grow"
    refused 1 "cannot shrink db: it is in use: $DEVICE is" "$FOREBAY" volume resize db 160MiB --admin "$ADMIN"
else
    refused 1 "this kernel cannot change the size
Linux 6.16" "$FOREBAY" volume resize db 192MiB --admin "$ADMIN"
    [ "$(blockdev --getsize64 "$DEVICE")" = $((160 << 20)) ] || fail "it has $(blockdev --getsize64 "$DEVICE") bytes"
    truncate -s 160M "$T/db.img"
fi
rm "$MOUNT/before"
fstrim "$MOUNT" || fail "what is deleted cannot be given back"

say "it is not taken away while it is used"
refused 1 "db: it is in use: $DEVICE is mounted
lsblk" "$FOREBAY" volume detach db --admin "$ADMIN"
assert_same "$T/data" "$MOUNT/across" "after what was refused"
umount "$MOUNT"
exec 7<"$DEVICE"
refused 1 "in use: $DEVICE is open in .*process $$" "$FOREBAY" volume detach db --admin "$ADMIN"
exec 7<&-

say "detached: the backing store has every byte"
HAD=$(checksum "$DEVICE")
ask volume detach db
[ ! -e "$DEVICE" ] && [ ! -L "$DEVICE" ] || fail "the name is still there"
[ ! -e "/dev/ublkc$NUMBER" ] || fail "the device is still there"
[ "$(checksum "$T/db.img")" = "$HAD" ] || fail "the backing store differs from what the device had"
fsck.ext4 -f -n "$T/db.img" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "the file system is damaged"; }

say "under another name, attached and detached by command, with requests of every kind"
ask volume attach db --backing "file:$T/db.img" --export ublk:other.name
OTHER=/dev/forebay/other.name
fio --name=raw --filename="$OTHER" --size=64M --rw=randwrite --bsrange=512-1M --blockalign=512 --ioengine=psync --direct=1 \
    --number_ios=400 --verify=crc32c --verify_fatal=1 --randrepeat=0 --minimal >"$T/fio-raw.out" 2>&1 ||
    { cat "$T/fio-raw.out"; fail "fio"; }
blkdiscard --offset $((64 << 20)) --length $((32 << 20)) "$OTHER" || fail "discard"
blkdiscard --zeroout --offset $((64 << 20)) --length $((32 << 20)) "$OTHER" || fail "zeroes"
cmp -n $((32 << 20)) -i $((64 << 20)):0 "$OTHER" /dev/zero || fail "what was made zeroes is not"
say "an attach that fails leaves no device"
refused 1 "cannot export half" "$FOREBAY" volume attach half --backing "file:$T/half.img" --export ublk:half \
    --export "nbd+unix:///half?socket=$T/none/half.sock" --admin "$ADMIN"
eventually 20 test ! -L /dev/forebay/half || fail "the name is still there"
say "--force takes it away under those who have it open"
exec 7<"$OTHER"
ask volume detach db --force
BYTES=$({ dd iflag=direct bs=4096 count=1 status=none <&7 2>/dev/null || true; } | wc -c)
[ "$BYTES" = 0 ] || fail "what is gone is still read"
exec 7<&-

say "a stop removes what nobody uses"
ask volume attach db --backing "file:$T/db.img" --export ublk:
unserve
[ ! -L "$DEVICE" ] || fail "the name is still there"
compgen -G '/dev/ublkc*' >/dev/null && fail "devices are left: $(echo /dev/ublkc*)"

say "one that nobody will serve again is listed, and removed by name"
serve
refused 1 "served by process $DAEMON
detach" "$FOREBAY" ublk remove db
crash
"$FOREBAY" ublk list >"$T/list"
grep -q "db.*/dev/ublkb.*waits for its daemon" "$T/list" || fail "it is not listed: $(cat "$T/list")"
"$FOREBAY" ublk list --json | grep '"name": "db"' >/dev/null || fail "it is not in the JSON list"
refused 1 "there is no block device /dev/forebay/nobody
ublk list" "$FOREBAY" ublk remove nobody
exec 7<"$DEVICE"
refused 1 "in use: $DEVICE is open in
--force" "$FOREBAY" ublk remove db
exec 7<&-
truncate -s 64M "$T/stranger.img"
refused 1 "/dev/forebay/db is the name of /dev/ublkb[0-9]*, which waits for its daemon
forebay ublk remove db" "$FOREBAY" run --backing "file:$T/stranger.img" --cache "$T/stranger.cache:64MiB" --export ublk:db
"$FOREBAY" ublk remove db || fail "it is not removed"
[ ! -L "$DEVICE" ] || fail "the name is still there"
"$FOREBAY" ublk list | grep "no block devices" >/dev/null || fail "something is left"
serve
[ -b "$DEVICE" ] || fail "a new one is not made"
refused 1 "/dev/forebay/db is the name of /dev/ublkb[0-9]*, which process $DAEMON serves" \
    "$FOREBAY" run --backing "file:$T/stranger.img" --cache "$T/stranger2.cache:64MiB" --export ublk:db

say "who mounts it is not harmed by another volume, nor by one that has another name"
mount "$DEVICE" "$MOUNT" 2>/dev/null || { mkfs.ext4 -q "$DEVICE" && mount "$DEVICE" "$MOUNT"; }
ask volume attach stranger --backing "file:$T/stranger.img" --export ublk:
ask volume detach stranger
touch "$MOUNT/file" && sync -f "$MOUNT" || fail "the file system is harmed"
umount "$MOUNT"
unserve

say "what cannot be is refused, and says what to do"
run=("$FOREBAY" run --backing "file:$T/db.img" --cache "$T/other.img:64MiB")
refused 1 "io_uring
--io uring" "${run[@]}" --io psync --export ublk:x
mkdir -p /dev/forebay
touch /dev/forebay/taken
refused 1 "/dev/forebay/taken is there
another name" "${run[@]}" --export ublk:taken
rm /dev/forebay/taken
exit 0

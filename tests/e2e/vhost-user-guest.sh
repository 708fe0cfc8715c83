#!/usr/bin/env bash
# A Linux guest with a file system on a volume over vhost-user. The daemon is killed and stopped under its load, and the volume
# grows: fio meets no error and finds what it wrote, and the backing store has it in the end.
# Runs in a guest.
. "$(dirname "$0")/lib.sh"
if [ -n "${IN_GUEST:-}" ]; then
    MOUNT=/run/mnt OUT=/run/out
    mkdir -p "$MOUNT"
    verified() { # NAME SECONDS
        verifies_files "$1" "$MOUNT" "$2" || {
            cat "$T/fio-$1.out"
            fail "fio $1"
        }
    }
    mkfs.ext4 -q /dev/vda && mount -o discard /dev/vda "$MOUNT" || fail "a file system"
    verified quiet 2
    echo loaded >"$OUT/stage"
    verified load 20
    echo killed >"$OUT/stage"
    eventually 60 test -e "$OUT/grown" || fail "nobody made it larger"
    larger() { [ "$(blockdev --getsize64 /dev/vda)" = $((192 << 20)) ]; }
    eventually 60 larger || fail "it has $(blockdev --getsize64 /dev/vda) bytes"
    resize2fs /dev/vda >/dev/null 2>&1 || fail "the file system does not grow"
    random_file "$MOUNT/data" 8
    cp "$MOUNT/data" "$OUT/data"
    rm "$MOUNT"/quiet* && fstrim "$MOUNT" || fail "what is deleted cannot be given back"
    umount "$MOUNT"
    if dmesg | grep -E 'I/O error|EXT4-fs error|Buffer I/O'; then fail "the guest's kernel met I/O errors"; fi
    exit 0
fi

. "$E2E/serve-lib.sh"
[ "$(id -u)" -eq 0 ] || skip "the guest is made as root"
"$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
need fsck.ext4 debugfs fio
truncate -s 160M "$T/db.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["vhost-user:$T/db.sock"]
END
serve
"$ROOT/tests/guest/run" --vhost-user "$T/db.sock" --limit 250 --out "$T/out" "$0" IN_GUEST=1 FOREBAY="$FOREBAY" >"$T/guest.out" 2>&1 &
GUEST=$!
on_exit 'kill_jobs TERM $GUEST'
guest_is() { ! kill -0 "$GUEST" 2>/dev/null || [ "$(cat "$T/out/stage" 2>/dev/null)" = "$1" ]; }
whole() { kill -0 "$GUEST" 2>/dev/null || { cat "$T/guest.out"; fail "the guest ended: $1"; }; }

say "a file system in the guest"
eventually 120 guest_is loaded || fail "the guest does not begin"
whole "before the load"
say "killed and stopped under load"
for way in crash unserve crash; do
    sleep 2
    "$way"
    sleep 0.5
    serve
done
eventually 120 guest_is killed || fail "the load does not end"
whole "under load"

say "it grows"
truncate -s 192M "$T/db.img"
ask volume resize db 192MiB
touch "$T/out/grown"
wait "$GUEST" || { cat "$T/guest.out"; fail "the guest"; }

say "the backing store has every byte"
ask volume detach db
fsck.ext4 -f -n "$T/db.img" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "the file system is damaged"; }
debugfs -R "dump /data $T/data" "$T/db.img" 2>/dev/null
assert_same "$T/out/data" "$T/data" "in the backing store"
unserve

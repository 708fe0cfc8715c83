#!/usr/bin/env bash
# A disk image with a file system, attached as it is: served as a file over FUSE, mounted through a loop device, watched and
# changed through the control files, killed and started again, drained and detached. Then the image mounts alone.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need losetup mkfs.ext4 fsck.ext4
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"

IMAGE=$T/disk.img FILE=$T/vol/home.img CONTROL=$T/control MOUNTED=$T/mnt
truncate -s 192M "$IMAGE"
mkfs.ext4 -q "$IMAGE"
mkdir "$MOUNTED"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.home]
pool = "fast"
backing = "file:$IMAGE"
exports = ["fuse:$FILE"]
idle_delay = "off"
END
# The control file system belongs to the daemon's own section.
sed -i "s|^state_dir|control_fs = \"$CONTROL\"\nstate_dir|" "$T/forebay.toml"

attach_loop() {
    LOOP=$(losetup --direct-io=on --show -f "$FILE")
    mount "$LOOP" "$MOUNTED"
}
detach_loop() {
    unmount "$LOOP" "$MOUNTED"
    losetup -d "$LOOP"
    LOOP=
}
LOOP=
on_exit 'umount -l "$MOUNTED"; [ -n "$LOOP" ] && losetup -d "$LOOP"; umount -l "$T/vol"; umount -l "$CONTROL"'

say "the image is served as a file, and its file system mounts"
serve
[ "$(stat -c %s "$FILE")" = $((192 << 20)) ] || fail "the file has another size than the volume"
attach_loop
random_file "$MOUNTED/a" 24
sync -f "$MOUNTED/a"
sum=$(checksum "$MOUNTED/a")
[ "$(cat "$CONTROL/volumes/home/dirty_bytes")" -gt 0 ] || fail "nothing is dirty after 24 MiB"
grep -q '^write' "$CONTROL/volumes/home/stats" || fail "no statistics: $(cat "$CONTROL/volumes/home/stats")"
grep -q ' writes=' "$CONTROL/volumes/home/flashcache_stats" || fail "no statistics under FlashCache's names"

say "a value is written to a file, and an illegal one is refused with its reason"
echo 33 >"$CONTROL/volumes/home/config/dirty_high_pct"
[ "$(cat "$CONTROL/volumes/home/config/dirty_high_pct")" = 33 ] || fail "the value did not stay"
grep -q 'dirty_high_pct = 33' "$T/forebay.toml" || fail "the value did not reach the configuration"
if echo 99 2>/dev/null >"$CONTROL/volumes/home/config/dirty_high_pct"; then fail "99 percent was taken"; fi
grep -q '90' "$CONTROL/volumes/home/last_error" || fail "no reason: $(cat "$CONTROL/volumes/home/last_error")"

say "echo 1 > flush returns when the drain is done"
# The file system may write its journal just then, by itself.
flushed() { echo 1 >"$CONTROL/volumes/home/flush" && [ "$(cat "$CONTROL/volumes/home/dirty_bytes")" = 0 ]; }
eventually 20 flushed || fail "dirty after a flush"

say "killed while mounted: what was synced is there after a restart over the stale mounts"
random_file "$MOUNTED/b" 12
sync -f "$MOUNTED/b"
sum_b=$(checksum "$MOUNTED/b")
crash
umount -l "$MOUNTED"
losetup -d "$LOOP"
LOOP=
serve
attach_loop
[ "$(checksum "$MOUNTED/a")" = "$sum" ] && [ "$(checksum "$MOUNTED/b")" = "$sum_b" ] || fail "a synced file changed"
detach_loop

say "drained and detached, the image stands alone"
ask volume detach home
[ ! -e "$FILE" ] || fail "the file is still there"
fsck.ext4 -fn "$IMAGE" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "fsck"; }
mount -o loop,ro "$IMAGE" "$MOUNTED"
[ "$(checksum "$MOUNTED/b")" = "$sum_b" ] || fail "the image alone has another file"
umount "$MOUNTED"
unserve
[ ! -e "$CONTROL/volumes" ] || fail "the control files are still mounted"

#!/usr/bin/env bash
# The way of the README, with a loop device: a file system on a volume, written while the mode changes and a drain is under way,
# then the volume is detached and the backing image stands alone, with every byte.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need losetup mkfs.ext4 fsck.ext4 fusermount3
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
losetup --find >/dev/null 2>&1 || skip "no loop device is available here"

truncate -s 128M "$T/disk.img"
mkfs.ext4 -q -F "$T/disk.img"
mkdir "$T/home" "$T/mnt"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
END
serve
on_exit "umount -l $T/home"
ask volume attach home --backing "file:$T/disk.img" --export "fuse:$T/home/disk.img"
LOOP=$(losetup --find --show "$T/home/disk.img") || skip "the loop driver does not take a file on FUSE here"
on_exit "losetup --detach $LOOP"
mount "$LOOP" "$T/mnt" || skip "ext4 cannot be mounted here"
on_exit "umount -l $T/mnt"

say "writing while the mode changes"
random_file "$T/data" 24
cp "$T/data" "$T/mnt/a"
ask set home mode=writethrough
cp "$T/data" "$T/mnt/b"
ask set home mode=writeback
cp "$T/data" "$T/mnt/c"
sync -f "$T/mnt"
say "an upgrade is refused, for files cannot be passed on, and nothing happens"
refused 1 'fuse:' "$FOREBAY" upgrade --admin "$ADMIN"
assert_same "$T/data" "$T/mnt/b" "after a refused upgrade"
say "detached: the image stands alone"
unmount "$LOOP" "$T/mnt"
losetup --detach "$LOOP"
ask volume detach home
[ ! -e "$T/home/disk.img" ] || fail "the file is still there"
fsck.ext4 -f -n "$T/disk.img" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "the file system is damaged"; }
mount -o loop,ro "$T/disk.img" "$T/mnt" || fail "the image alone cannot be mounted"
for name in a b c; do assert_same "$T/data" "$T/mnt/$name" "the image alone"; done
umount "$T/mnt"
unserve

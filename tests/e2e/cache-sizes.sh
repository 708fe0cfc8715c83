#!/usr/bin/env bash
# What a cache is made on: what is there, begins with zeroes and is no blank device is taken only with --force, a file system is not filled without a
# word, a start that fails leaves no cache file behind, and the sizes that the daemon writes into its file hold at the next start.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need mount losetup blkdiscard
export STATE_DIRECTORY=$T/run-state
RUN=("$FOREBAY" run --backing "file:$BACKING" --export "$URI" --cache)
mkdir "$T/flash"
mount -t tmpfs -o size=100M tmpfs "$T/flash" || skip "no tmpfs may be mounted here"
on_exit "umount -l $T/flash"
make_backing 16M

say "an empty file that is there"
CACHE=$T/zero.img CACHE_SIZE=16MiB
truncate -s 16M "$CACHE"
refused 1 'is there, but is no cache
--force' "${RUN[@]}" "$CACHE"
start --force
stop
start # it is a cache now

say "a backing store that is busy leaves no cache file behind, and no record"
other=$T/left.img
refused 1 'in use' "$FOREBAY" run --backing "file:$BACKING" --cache "$other:16MiB" --export "nbd+unix:///v?socket=$T/v.sock"
[ ! -e "$other" ] || fail "a cache file was left behind"
[ "$(find "$STATE_DIRECTORY/caches" -name '*.json' | wc -l)" = 1 ] || fail "$(ls "$STATE_DIRECTORY/caches")"
stop

say "a file system that would be nearly full"
refused 1 '97000000 bytes
less than a tenth
--force' "${RUN[@]}" "$T/flash/cache.img:97MB"
[ ! -e "$T/flash/cache.img" ] || fail "a cache file was left behind"
CACHE=$T/flash/cache.img CACHE_SIZE=97MB
start --force
stop

say "pool create on a device that is not blank, and on one that is; grow by a file, shrink, start again"
truncate -s 64M "$T/db.img"
truncate -s 20M "$T/disk"
DEVICE=$(losetup -f --show "$T/disk") || skip "there are no loop devices"
on_exit "losetup -d $DEVICE"
config <<END
[pool.grown]
devices = [{ path = "$T/one.img", size = "33000000B" }]
[volume.db]
pool = "grown"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
END
serve
printf x | dd of="$DEVICE" bs=1 seek=$((20 * 1024 * 1024 - 1)) conv=notrunc status=none
refused 1 'is there, but is no cache
same command with --force' "$FOREBAY" pool create fast --device "$DEVICE" --admin "$ADMIN"
ask pool create fast --device "$DEVICE" --force
ask pool remove fast --erase
blkdiscard --zeroout "$DEVICE"
ask pool create fast --device "$DEVICE"
ask pool remove fast --erase
ask pool grow grown --device "$T/two.img:16MiB"
ask pool shrink grown --device "$T/two.img"
unserve
serve
ask volume show db
ask pool grow grown --size 40MiB
ask pool shrink grown --size 24MiB
unserve
serve
ask volume show db
unserve

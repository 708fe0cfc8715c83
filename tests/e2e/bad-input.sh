#!/usr/bin/env bash
# Wrong command lines (exit code 2), and caches, backing stores and sockets that are not as they should be (exit code
# 1): each with a message that says what is wrong and what to do, and none of them loses anything.
. "$(dirname "$0")/lib.sh"
need python3 nbdcopy cmp

VOLUME_MIB=32 # all of it fits the cache
make_backing ${VOLUME_MIB}M
random_file "$T/in" $VOLUME_MIB
run=("$FOREBAY" run --backing "file:$BACKING" --cache "$CACHE:$CACHE_SIZE" --export "$URI")
# Settings under which dirty data stays in the cache.
keep_dirty=(--set dirty_low_pct=90 --set dirty_high_pct=90 --set idle_delay=1h)

say "wrong command lines"
refused 2 '--backing' "$FOREBAY" run --cache "$CACHE:64MiB" --export "$URI"
refused 2 'nonsense' "$FOREBAY" run --nonsense
refused 2 'frobnicate' "$FOREBAY" frobnicate
# What is shipped has no planted bugs. (A build of the tests may have them: it then knows no bug of this name.)
refused 2 'planted bug' "$FOREBAY" sim --break nonsense
refused 2 'writesideways
writeback' "${run[@]}" --mode writesideways
refused 2 'size|64XiB' "$FOREBAY" run --backing "file:$BACKING" --cache "$CACHE:64XiB" --export "$URI"
refused 2 'no_such_setting' "${run[@]}" --set no_such_setting=1
refused 2 'dirty_low_pct' "${run[@]}" --set dirty_low_pct=many
refused 2 'gopher' "$FOREBAY" run --backing "gopher:$BACKING" --cache "$CACHE:64MiB" --export "$URI"
[ ! -e "$CACHE" ] || fail "a refused command line made a cache"

say "things that are not there or do not fit"
refused 1 'nothere' "$FOREBAY" run --backing "file:$T/nothere" --cache "$CACHE:64MiB" --export "$URI"
refused 1 'too small
larger|at least' "$FOREBAY" run --backing "file:$BACKING" --cache "$T/small.img:64KiB" --export "$URI"
refused '1|2' 'same' "$FOREBAY" run --backing "file:$BACKING" --cache "$BACKING:64MiB" --export "$URI"
ln "$BACKING" "$T/hardlink"
refused '1|2' 'same' "$FOREBAY" run --backing "file:$BACKING" --cache "$T/hardlink:64MiB" --export "$URI"
rm "$T/hardlink"
refused 1 'nothere' "$FOREBAY" check "$T/nothere"
refused 1 'not a forebay|no magic' "$FOREBAY" check "$T/in"
cp "$T/in" "$T/precious"
refused 1 'not a forebay|no magic|holds data|not empty' \
    "$FOREBAY" run --backing "file:$BACKING" --cache "$T/precious:64MiB" --export "$URI"
assert_same "$T/in" "$T/precious" "a file that is not a cache was offered as one"

say "data that only the cache has"
start "${keep_dirty[@]}"
nbdcopy --flush "$T/in" "$URI"
stop
if cmp -s "$T/in" "$BACKING"; then fail "nothing is dirty: this test would prove nothing"; fi
cp --sparse=always "$CACHE" "$T/cache.good"
cp --sparse=always --preserve=timestamps "$BACKING" "$T/backing.good"
cp -r "$STATE_DIRECTORY" "$T/state.good"

restore() {
    cp --sparse=always "$T/cache.good" "$CACHE"
    # What is recorded of the cache belongs to it: without that this would be an older copy, and refused.
    rm -r "$STATE_DIRECTORY"
    cp -r "$T/state.good" "$STATE_DIRECTORY"
    cp --sparse=always --preserve=timestamps "$T/backing.good" "$BACKING.new"
    # In place: the backing store is recognised by its inode as well.
    cat "$BACKING.new" >"$BACKING"
    touch --reference="$T/backing.good" "$BACKING"
    rm "$BACKING.new"
}
nothing_lost() {
    start "${keep_dirty[@]}"
    nbdcopy "$URI" "$T/out"
    assert_same "$T/in" "$T/out" "after $1"
    stop
    restore
}

nothing_lost "an undisturbed restart"

say "a truncated cache"
truncate -s 20M "$CACHE"
refused 1 'truncated
restore' "${run[@]}"
refused 1 'truncated' "$FOREBAY" check "$CACHE"
restore
nothing_lost "a truncated cache"

say "a cache of a newer version"
python3 "$E2E/patch_superblock.py" "$CACHE" version 9
cp --sparse=always "$CACHE" "$T/cache.newer"
refused 1 'version 9
newer' "${run[@]}"
refused 1 'version 9
newer' "$FOREBAY" check "$CACHE"
assert_same "$CACHE" "$T/cache.newer" "a cache of a newer version was written to"
restore

say "one superblock damaged: the other one serves; both damaged: refused"
dd if=/dev/urandom of="$CACHE" bs=512 count=1 conv=notrunc status=none
nothing_lost "damage to superblock A"
dd if=/dev/urandom of="$CACHE" bs=4096 seek=16 count=1 conv=notrunc status=none
nothing_lost "damage to superblock B"
python3 "$E2E/patch_superblock.py" "$CACHE" generation 5 --wrong-checksum
refused 1 'superblock' "${run[@]}"
restore

say "a cache with the data of another backing store"
truncate -s ${VOLUME_MIB}M "$T/other.img"
refused 1 'another|different|other' \
    "$FOREBAY" run --backing "file:$T/other.img" --cache "$CACHE:$CACHE_SIZE" --export "$URI"
[ "$(tr -d '\0' <"$T/other.img" | wc -c)" -eq 0 ] || fail "the other backing store was written to"
nothing_lost "a wrong backing store"

say "a backing store that shrank"
truncate -s 16M "$BACKING"
refused 1 'smaller|shrank|size' "${run[@]}"
restore
nothing_lost "a backing store that shrank"

say "a backing store that changed while there was dirty data"
printf 'changed by somebody else' | dd of="$BACKING" bs=1 seek=1000000 conv=notrunc status=none
cp --sparse=always "$BACKING" "$T/backing.changed"
refused 1 'changed' "${run[@]}"
assert_same "$BACKING" "$T/backing.changed" "a refused backing store was written to"
restore
nothing_lost "a backing store that changed and was put back"

say "a backing store that changed while everything was clean: its new contents count"
rm -r "$CACHE" "$STATE_DIRECTORY/caches" # nobody knows of it any more
start --mode writethrough
nbdcopy --flush "$T/in" "$URI"
nbdcopy "$URI" "$T/out"
stop
assert_same "$T/in" "$BACKING" "write-through: backing store"
printf 'changed by somebody else' | dd of="$BACKING" bs=1 seek=1000000 conv=notrunc status=none
start
nbdcopy "$URI" "$T/out"
assert_same "$BACKING" "$T/out" "clean cached data was trusted over a changed backing store"

say "a cache, a socket and a backing store that are in use"
refused 1 'in use|lock|another' "${run[@]}"
refused 1 'in use|lock|another|exists' \
    "$FOREBAY" run --backing "file:$T/other.img" --cache "$T/second.img:64MiB" --export "$URI"
refused 1 'in use|lock|another' "$FOREBAY" run --backing "file:$BACKING" --cache "$T/third.img:64MiB" \
    --export "nbd+unix:///vol?socket=$T/third.sock"
assert_serving "others wanted what it has"
say "a socket that a killed daemon left behind is no obstacle"
crash
[ -S "$SOCKET" ] || fail "kill -9 leaves the socket: this test would prove nothing"
start
assert_serving "started on an old socket"
stop
[ ! -e "$SOCKET" ] || fail "an orderly stop leaves the socket behind"

#!/usr/bin/env bash
# The FlashCache model, over NBD and FUSE: fio verifies what it wrote while a small cache is cleaned and replaced under it, and
# again from an empty cache after an orderly stop, when everything must be on the disk. What it refuses is refused in words.
. "$(dirname "$0")/lib.sh"
need_fio
MODEL=${FLASHCACHE_MODEL:-$(dirname "$FOREBAY")/flashcache-model}
[ -x "$MODEL" ] || skip "no binary at $MODEL: cargo build --release -p forebay-flashcache-model, or set FLASHCACHE_MODEL"

FILE=$T/mounted/vol
start_model() { # EXPORT OPTION...
    local export=$1
    shift
    : >"$T/stdout"
    "$MODEL" --backing "file:$BACKING" --cache "$CACHE:16MiB" --export "$export" --stats "$T/stats.json" "$@" \
        >"$T/stdout" 2>>"$T/stderr" &
    DAEMON=$!
    eventually "$READY_SECONDS" grep -q '^ready: ' "$T/stdout" || fail "not ready after $READY_SECONDS s"
}

counter() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$T/stats.json" "$1"; }

job() { # NAME OPTION...
    verifies "$1" --iodepth=16 --size=48M "${@:2}" || {
        cat "$T/fio-$1.out"
        fail "fio $1: an error, or wrong data"
    }
}
nbd=(--ioengine=nbd "--uri=$URI")
sizes=(--rw=randwrite --bsrange=512-64k --blockalign=512)

make_backing 64M
for mode in back through around; do
    say "NBD, write-$mode"
    start_model "$URI" --mode "$mode" --assoc 256
    job "write-$mode" "${nbd[@]}" "${sizes[@]}" --do_verify=1
    stop
    [ "$(counter dirty_blocks)" = 0 ] || fail "$(counter dirty_blocks) blocks are dirty after the stop"
    [ "$(counter reads)" -gt 0 ] || fail "nothing was counted"
    start_model "$URI" --mode "$mode" --assoc 256
    job "verify-$mode" "${nbd[@]}" "${sizes[@]}" --verify_only=1
    stop
done

say "reads and writes mixed, zeroes and discards between them, LRU, flushes that reach the devices"
start_model "$URI" --reclaim lru --flush device --fallow-delay 1
job mixed "${nbd[@]}" --rw=randrw --bsrange=512-64k --blockalign=512 --do_verify=1 --fsync=32
job trims "${nbd[@]}" --rw=randtrim --bs=64k --verify=null --io_size=4M
stop

say "killed: the next start says what is lost, and begins with an empty cache"
start_model "$URI"
crash
start_model "$URI"
grep -q 'not stopped in an orderly way' "$T/stderr" || fail "nothing is said of the lost data"
stop

if [ -e /dev/fuse ] && { [ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null; }; then
    say "FUSE"
    on_exit 'umount -l "$T/mounted" || fusermount3 -u -z "$T/mounted"'
    start_model "fuse:$FILE"
    job fuse --filename="$FILE" --ioengine=psync "${sizes[@]}" --do_verify=1 --end_fsync=1
    stop
    [ ! -e "$FILE" ] || fail "the file is still there"
    job fuse --filename="$BACKING" --ioengine=psync "${sizes[@]}" --verify_only=1
else
    say "FUSE: left out, there is none here"
fi

say "wrong input is refused"
model=("$MODEL" --backing "file:$BACKING" --export "$URI")
refused 2 dirty_thresh_pct "${model[@]}" --cache "$CACHE" --dirty-thresh-pct 5
refused 2 'power of two' "${model[@]}" --cache "$CACHE" --assoc 300
refused 2 'back, through, around' "${model[@]}" --cache "$CACHE" --mode sideways
random_file "$T/somebodys" 1
refused 1 'something on it' "${model[@]}" --cache "$T/somebodys"
refused 1 'no cache file' "${model[@]}" --cache "$T/none.img"
refused 1 'sets of 512' "${model[@]}" --cache "$T/tiny.img:1MiB"

#!/usr/bin/env bash
# fio writes with checksums at many block sizes and verifies them: at once, and again after a restart of the daemon.
. "$(dirname "$0")/lib.sh"
need_fio

make_backing 256M

job() { # NAME OPTION...
    verifies "$1" --ioengine=nbd --uri="$URI" --iodepth=16 --size=64M "${@:2}" || {
        cat "$T/fio-$1.out"
        fail "fio $1: an error, or wrong data"
    }
}

for sizes in bs=512 bs=4k bs=16k bs=128k 'bsrange=512-128k --blockalign=512'; do
    say "--$sizes"
    options="--rw=randwrite --${sizes} --offset=32M"
    [ "$sizes" = bs=512 ] && options="$options --io_size=16M --size=16M"
    start
    # shellcheck disable=SC2086 # several options in one word
    job write-and-verify $options --do_verify=1
    stop
    start
    # shellcheck disable=SC2086 # as above
    job verify-after-restart $options --verify_only=1
    stop
done

say "reads and writes mixed"
start
job mixed --rw=randrw --bsrange=512-64k --blockalign=512 --do_verify=1
stop

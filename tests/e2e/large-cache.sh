#!/usr/bin/env bash
# A cache of 4 TiB opens, takes checkpoints and is opened again with the least memory for requests that can be configured, while a
# client has as much in flight as it may.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
truncate -s 4T "$T/probe" 2>/dev/null || skip "this file system has no files of 4 TiB"
rm "$T/probe"

truncate -s 1G "$T/db.img"
config <<END
[pool.large]
devices = [{ path = "$T/cache.img", size = "4TiB" }]
cache_allocation = "sparse"
buffer_memory = "192MiB"

[volume.db]
pool = "large"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END

fio_on() { # OPTION...
    verifies large --ioengine=nbd --uri="nbd+unix:///db?socket=$T/db.sock" --iodepth=64 --bs=1M --rw=write --size=256M "$@" || {
        cat "$T/fio-large.out" "$T/stderr"
        fail "an error, or wrong data"
    }
}
sound() {
    ask alarms --json
    grep -q 'cache\.' "$T/ask.out" && fail "an alarm: $(cat "$T/ask.out")"
    return 0
}

READY_SECONDS=60
serve
fio_on --do_verify=1
sound
say "killed, and opened again"
crash
serve
sound
fio_on --verify_only=1
unserve
say "stopped in an orderly way, and opened again"
serve
sound
fio_on --verify_only=1
unserve

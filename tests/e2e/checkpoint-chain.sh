#!/usr/bin/env bash
# A cache that is large enough for increments of checkpoints: killed while there is a chain of them, it is sound, and serves what was
# written; after an orderly stop the checkpoint is whole.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need python3
truncate -s 64G "$T/probe" 2>/dev/null || skip "this file system has no files of 64 GiB"
rm "$T/probe"

truncate -s 1G "$T/db.img"
config <<END
[pool.chained]
devices = [{ path = "$T/cache.img", size = "64GiB" }]
cache_allocation = "sparse"

[volume.db]
pool = "chained"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END

SIZE=64M
fio_on() { # OPTION...
    verifies chain --ioengine=nbd --uri="nbd+unix:///db?socket=$T/db.sock" --iodepth=16 --bs=64k --rw=randwrite --size=$SIZE "$@" || {
        cat "$T/fio-chain.out" "$T/stderr"
        fail "an error, or wrong data"
    }
}
increments() { # blocks of increments that the newest superblock names
    "$FOREBAY" inspect --json "$T/cache.img" >"$T/inspect.json" || fail "forebay inspect"
    python3 - "$T/inspect.json" <<'END'
import json, sys

copies = [copy for copy in json.load(open(sys.argv[1]))["superblocks"] if "generation" in copy]
print(max(copies, key=lambda copy: copy["generation"])["increment_blocks"])
END
}
sound() {
    "$FOREBAY" check "$T/cache.img" >"$T/check.out" || {
        cat "$T/check.out"
        fail "forebay check finds fault with the cache"
    }
}

# Writes past the cache, large enough to be noted as intents: a second after they have ended there is a checkpoint.
past_the_cache() {
    ask set db mode=writearound
    fio_on --do_verify=0
    sleep 3
    ask set db mode=writeback
}

READY_SECONDS=60
serve
fio_on --do_verify=0
past_the_cache
fio_on --do_verify=0
say "killed while its checkpoint is a chain"
crash
[ "$(increments)" -gt 0 ] || fail "there is no chain"
sound
serve
fio_on --verify_only=1
say "killed again, after other writes"
SIZE=96M
past_the_cache
fio_on --do_verify=0
crash
[ "$(increments)" -gt 0 ] || fail "there is no chain"
sound
serve
fio_on --verify_only=1
unserve
say "after an orderly stop it is whole"
[ "$(increments)" -eq 0 ] || fail "there is a chain"
sound
serve
fio_on --verify_only=1
unserve

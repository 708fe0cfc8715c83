#!/usr/bin/env bash
# Clients that begin writes and do not end them, or go while they wait for memory: every promised length is served with the least
# memory that can be configured, the other volumes of the pool notice nothing, and who has gone is let go.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

PORT=$(free_port)
truncate -s 64M "$T/db.img"
truncate -s 64M "$T/o.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
buffer_memory = "${MEMORY:-192MiB}"

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock", "nbd://127.0.0.1:$PORT/db"]

[volume.o]
pool = "fast"
backing = "file:$T/o.img"
exports = ["nbd+unix:///o?socket=$T/o.sock"]
END
export E2E FOREBAY
serve

for case in ${CASES:-longest stalled trickle gone}; do
    say "$case"
    timeout 100 python3 "$E2E/nbd_stalled.py" "$case" "$T" "127.0.0.1:$PORT" || fail "$case"
done
[ -n "${CASES:-}" ] || logged 'sends nothing more of a write that it has begun, and has [0-9]* bytes of memory'
ask volume detach db
unserve

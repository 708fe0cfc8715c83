#!/usr/bin/env bash
# Clients that ask for more than the memory of the pool and read nothing for a while: no data without its header, no write of
# the engine that fails for want of memory, and everything is answered in the end.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need nbdcopy python3

truncate -s 96M "$T/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
buffer_memory = "96MiB"

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$T/nbd.sock"]
END
serve
random_file "$T/in" 96
nbdcopy --connections=4 --flush "$T/in" "nbd+unix:///vol?socket=$T/nbd.sock"
for clients in 1 4; do
    say "$clients clients with 150 requests of 1 MiB each"
    timeout 60 python3 "$E2E/nbd_pressure.py" "$T/nbd.sock" - "$T/in" $clients 150 || fail "replies under pressure"
done
rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$DAEMON/status")
[ "$rss" -lt $((300 << 10)) ] || fail "clients made the daemon take $rss kB of memory"
if grep -q "failed" "$T/stderr"; then fail "clients took the memory that the engine needs"; fi
stop

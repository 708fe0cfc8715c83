#!/usr/bin/env bash
# Garbage on the socket, half a request, requests beyond all bounds: the daemon goes on serving and nothing is changed.
. "$(dirname "$0")/lib.sh"
need python3 nbdinfo

make_backing 64M
start
writer write --seconds 1
for case in garbage garbage-after-handshake half-a-write vanish-with-requests-in-flight out-of-range huge; do
    say "$case"
    timeout 60 python3 "$E2E/nbd_abuse.py" "$SOCKET" vol "$case" || fail "$case"
    assert_serving "$case"
done
writer verify || fail "the volume changed"
say "unaligned"
timeout 60 python3 "$E2E/nbd_abuse.py" "$SOCKET" vol unaligned || fail "unaligned"
if grep -q 'panicked at' "$T/stderr"; then fail "the daemon panicked"; fi
rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$DAEMON/status")
[ "$rss" -lt $((1 << 20)) ] || fail "a client made the daemon take $rss kB of memory"
stop

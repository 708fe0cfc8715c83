#!/usr/bin/env bash
# Another NBD implementation in between: nbdkit as a client of the volume and a server to nbdcopy.
. "$(dirname "$0")/lib.sh"
need nbdkit nbdcopy
nbdkit nbd --version >/dev/null 2>&1 || skip "nbdkit has no nbd plugin"

make_backing 64M
random_file "$T/in" 64
start
nbdkit --exit-with-parent --foreground --unix "$T/proxy.sock" nbd socket="$SOCKET" export=vol &
PROXY=$!
on_exit "kill_jobs KILL $PROXY"
eventually 20 test -S "$T/proxy.sock" || fail "nbdkit does not start"
PROXY_URI="nbd+unix:///?socket=$T/proxy.sock"
nbdcopy --flush "$T/in" "$PROXY_URI"
nbdcopy "$PROXY_URI" "$T/out"
assert_same "$T/in" "$T/out" "through nbdkit"
nbdcopy "$URI" "$T/direct"
assert_same "$T/in" "$T/direct" "past nbdkit"
kill "$PROXY"
wait "$PROXY" || true
stop

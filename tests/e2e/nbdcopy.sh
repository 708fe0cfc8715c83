#!/usr/bin/env bash
# A whole image in and out again, with several connections, more than the cache holds, and after a restart.
. "$(dirname "$0")/lib.sh"
need nbdcopy sha256sum

make_backing 192M
random_file "$T/in" 192
start
nbdcopy --connections=4 --flush "$T/in" "$URI"
nbdcopy --connections=4 "$URI" "$T/out"
assert_same "$T/in" "$T/out" "copied in and out"
stop
start
nbdcopy "$URI" "$T/again"
[ "$(checksum "$T/in")" = "$(checksum "$T/again")" ] || fail "after a restart the volume differs"
stop

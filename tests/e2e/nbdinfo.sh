#!/usr/bin/env bash
# What the export says of itself: size, flags, block sizes, and both metadata contexts.
. "$(dirname "$0")/lib.sh"
need nbdinfo jq nbdcopy

make_backing 100M
start
nbdinfo --json "$URI" >"$T/info.json"

field() { jq -r ".exports[0].$1" "$T/info.json"; }
expect() { # FIELD VALUE
    [ "$(field "$1")" = "$2" ] || { cat "$T/info.json"; fail "nbdinfo says $1 = $(field "$1"), expected $2"; }
}

expect '"export-size"' "$((100 << 20))"
expect is_read_only false
expect can_flush true
expect can_fua true
expect can_trim true
expect can_zero true
expect can_multi_conn true
for size in minimum preferred maximum; do
    found=$(field "\"block_size_$size\"")
    [[ $found =~ ^[0-9]+$ ]] || { cat "$T/info.json"; fail "no $size block size"; }
    [ $((found & (found - 1))) -eq 0 ] || fail "the $size block size $found is not a power of two"
done
[ "$(field '"block_size_preferred"')" = 4096 ] || fail "the preferred block size is not 4096"
for context in base:allocation forebay:cache; do
    field '"contexts"[]' | grep -x "$context" >/dev/null || { cat "$T/info.json"; fail "no metadata context $context"; }
done

say "an export that does not exist is refused, and the daemon goes on"
if nbdinfo --size "nbd+unix:///nothere?socket=$SOCKET" 2>/dev/null; then
    fail "an unknown export name was accepted"
fi
nbdinfo --list "nbd+unix:///?socket=$SOCKET" | grep vol >/dev/null || fail "the export is not listed"

say "the maps cover the whole volume, and what was written is cached"
random_file "$T/data" 4
nbdcopy "$T/data" "$URI"
for context in base:allocation forebay:cache; do
    nbdinfo --map="$context" --json "$URI" >"$T/map.json"
    covered=$(jq '[.[].length] | add' "$T/map.json")
    [ "$covered" = "$((100 << 20))" ] || fail "the map $context covers $covered bytes"
done
first=$(jq '.[0].type' "$T/map.json")
[ "$first" != 0 ] || { cat "$T/map.json"; fail "forebay:cache calls freshly written data not cached"; }
stop

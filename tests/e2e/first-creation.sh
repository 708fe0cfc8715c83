#!/usr/bin/env bash
# kill -9 while caches are made for the first time, at any instant: the next start ends what was begun, and asks for nothing. What
# somebody else has put there, also behind such a beginning, is not taken.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

truncate -s 64M "$T/db.img"
config <<END
[pool.one]
devices = [{ path = "$T/one.img", size = "32MiB" }]
[pool.two]
devices = [{ path = "$T/a.img", size = "32MiB" }, { path = "$T/b.img", size = "32MiB" }]
[pool.both]
devices = [{ path = "$T/x.img", size = "32MiB" }, { path = "$T/y.img", size = "32MiB" }]
mirror = true
[volume.db]
pool = "one"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
END
CACHES=("$T/one.img" "$T/a.img" "$T/b.img" "$T/x.img" "$T/y.img")
begin_anew() { rm -rf "${CACHES[@]}" "$T/state"; }
opens() { # WHEN: all pools are open and whole
    for pool in one two both; do ask pool show "$pool"; done
    ask alarms --json
    if grep -q 'pool.failed\|cache.degraded' "$T/ask.out"; then fail "$1: $(cat "$T/ask.out" "$T/stderr")"; fi
}

say "killed at some instant of the first start"
for round in $(seq 1 12); do
    begin_anew
    "$FOREBAY" serve --config "$T/forebay.toml" >/dev/null 2>&1 &
    STARTING=$!
    sleep "$(printf '0.%03d' $((round * 4)))"
    kill -9 "$STARTING"
    wait "$STARTING" || true
    ls -ls "${CACHES[@]}" >"$T/left" 2>/dev/null || true
    serve
    opens "round $round, after $(cat "$T/left")"
    crash
done

say "what can be left of a file in between"
mark() { printf 'FBAYNEW\0a cache is being made or filled here: nothing on this device counts yet\n'; }
left() { # WHAT FILE
    case $1 in
        empty) : >"$2" ;;
        started) { mark; head -c 4016 /dev/zero; } >"$2" ;;
        sized) mark >"$2" && truncate -s 32M "$2" ;;
        # Checkpoints are written, superblocks are not.
        written) mark >"$2" && truncate -s 32M "$2" && printf x | dd of="$2" bs=4096 seek=32 conv=notrunc status=none ;;
    esac
}
for what in empty started sized written; do
    begin_anew
    for file in "${CACHES[@]}"; do left "$what" "$file"; done
    serve
    opens "$what"
    unserve
    serve
    opens "$what, started again"
    crash
done

say "what somebody else has put there is not taken"
not_taken() { # WHAT
    cp "$T/one.img" "$T/kept"
    serve
    ask alarms --json
    grep -q 'pool.failed' "$T/ask.out" || fail "$1 was taken"
    cmp "$T/one.img" "$T/kept" || fail "$1 was written to"
    crash
}
begin_anew
truncate -s 32M "$T/one.img"
not_taken "a file of zeroes"
begin_anew
left sized "$T/one.img"
printf _BHRfS_M | dd of="$T/one.img" bs=1 seek=65600 conv=notrunc status=none
not_taken "a file system behind a beginning"
begin_anew
printf text >"$T/one.img"
not_taken "a text"

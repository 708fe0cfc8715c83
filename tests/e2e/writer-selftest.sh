#!/usr/bin/env bash
# The canary: the writer that judges the other tests must notice a lost write, a write that comes back, and a torn
# sector. Against nbdkit, so that it does not depend on what it judges.
. "$(dirname "$0")/lib.sh"
need nbdkit python3

make_backing 8M
serve() {
    rm -f "$SOCKET"
    nbdkit --exit-with-parent --foreground --exportname=vol --unix "$SOCKET" file "$BACKING" &
    DAEMON=$!
    for _ in $(seq 200); do [ -S "$SOCKET" ] && return; sleep 0.05; done
    fail "nbdkit does not start"
}
must_fail() { # WHAT WORDS
    if writer check-file --file "$BACKING" >"$T/out"; then
        fail "the writer did not notice $1"
    fi
    grep -q "$2" "$T/out" || { cat "$T/out"; fail "the writer misjudged $1"; }
    say "noticed: $1"
}

serve
writer write --seconds 1
cp "$BACKING" "$T/old"
writer verify
writer write --seconds 1 --seed 2
writer verify
writer check-file --file "$BACKING"
cp "$BACKING" "$T/new"
cp "$T/state" "$T/state.new"

cp "$T/old" "$BACKING"
must_fail "lost writes" 'expected stamp'

cp "$T/new" "$BACKING"
# The first sector that is not zeroes: half of it.
sector=$(python3 -c "
data = open('$T/new', 'rb').read()
print(next(s for s in range(len(data) // 512) if any(data[s * 512 : s * 512 + 512])))")
dd if=/dev/zero of="$BACKING" bs=256 seek=$((sector * 2 + 1)) count=1 conv=notrunc status=none
must_fail "a torn sector" 'torn inside'

say "a crash under load: what was under way may be there or not, but not change afterwards"
cp "$T/new" "$BACKING"
writer write --seconds 30 --seed 3 --depth 64 >"$T/writer.out" &
WRITER=$!
eventually 30 grep -q connected "$T/writer.out" || fail "the writer does not connect"
sleep 1
crash
wait "$WRITER" || { cat "$T/writer.out"; fail "the writer did not take the disconnect for a crash"; }
cat "$T/writer.out"
cp "$T/state" "$T/state.crash"
if writer write --seconds 1 2>/dev/null; then fail "the writer wrote before it had verified"; fi
serve
writer verify
writer verify
crash

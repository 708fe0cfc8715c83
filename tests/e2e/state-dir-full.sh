#!/usr/bin/env bash
# A state directory that takes no writes, because it is full or read-only: that has an alarm as long as it lasts. An upgrade is refused
# before anything is given up, and clients stay connected. After a crash the pool is served, as its record says that it is in use; after
# an orderly stop it is opened as soon as there is room.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 mount
export PYTHONPATH=$E2E

mkdir "$T/state"
mount -t tmpfs -o size=600k tmpfs "$T/state" || skip "no tmpfs may be mounted here"
on_exit "umount -l $T/state"
truncate -s 48M "$T/db.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "32MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
idle_delay = "off"
END
cat >"$T/keep.py" <<'END'
# One connection that stays: writes something for each word that it is told, and reads it again.
import sys
from nbd_client import FLUSH, READ, WRITE, Client
client = Client(sys.argv[1], "db")
print("there", flush=True)
for count, word in enumerate(iter(sys.stdin.readline, ""), 1):
    for at in range(64):
        block = bytes([(count * 64 + at) % 251]) * 4096
        assert client.call(WRITE, (count * 64 + at) * 4096, 4096, block)[0] == 0
    assert client.call(FLUSH)[0] == 0
    assert client.call(READ, (count * 64 + 63) * 4096, 4096) == (0, block)
    print(word.strip(), flush=True)
END
connect() {
    [ -z "${KEEPER:-}" ] || kill "$KEEPER" 2>/dev/null || true
    WORDS=$(mktemp "$T/words.XXXXXX")
    tail -n +1 -f "$WORDS" --pid "$$" | python3 "$T/keep.py" "$T/db.sock" >"$T/keep.out" 2>&1 &
    KEEPER=$!
    eventually 20 grep -q there "$T/keep.out" || fail "cannot connect: $(cat "$T/keep.out")"
}
still_there() { # WORD
    echo "$1" >>"$WORDS"
    eventually 20 grep -q "$1" "$T/keep.out" || fail "the connection is gone ($1): $(cat "$T/keep.out")"
}
alarmed() { ask alarms --json && grep -q "$1" "$T/ask.out"; }
quiet() { ! alarmed "$1"; }
fill() { head -c 8M /dev/zero >>"$T/state/filler" 2>/dev/null || true; }
trouble() { # WHAT
    still_there "$1-begins"
    # A record that took the place of another one just then has left room.
    still_alarmed() { [ "$1" != full ] || fill; alarmed state.unwritable; }
    eventually 30 still_alarmed "$1" || fail "$1: no alarm: $(cat "$T/ask.out")"
    grep -q 'an older copy of the cache may not be told' "$T/ask.out" || fail "$1: it does not say what that means: $(cat "$T/ask.out")"
    logged 'may not be told from it after a crash'
    [ "$(grep -c 'may not be told from it after a crash' "$T/stderr")" = 1 ] || fail "$1: not told once: $(cat "$T/stderr")"
    ask status
    grep -q 'cannot write\|state.unwritable\|1 alarm' "$T/ask.out" || fail "$1: status says nothing: $(cat "$T/ask.out")"
    refused 1 'cannot write' "$FOREBAY" upgrade --admin "$ADMIN"
    still_there "$1-upgrade-refused"
    ask pool list
    grep -q 'NOT OPEN' "$T/ask.out" && fail "$1: the pool is not open: $(cat "$T/ask.out")"
    kill -0 "$DAEMON" || fail "$1: the daemon is gone"
}
over() { # WHAT
    eventually 30 quiet state.unwritable || fail "$1 is over, and the alarm stays: $(cat "$T/ask.out")"
    logged 'is up to date again'
}

say "full"
serve
connect
fill
trouble full
rm "$T/state/filler"
over full

say "read-only"
unserve
serve
connect
mount --bind "$T/state" "$T/state" && mount -o remount,bind,ro "$T/state" || fail "cannot make it read-only"
on_exit "umount -l $T/state"
trouble read-only

say "after a crash the pool is served: its record says already that it is in use"
crash
serve
ask pool list
grep -q 'NOT OPEN' "$T/ask.out" && fail "it is not open: $(cat "$T/stderr")"
connect
still_there after-crash
eventually 30 alarmed state.unwritable || fail "no alarm after a start: $(cat "$T/ask.out")"
mount -o remount,bind,rw "$T/state"
over read-only
ask upgrade
still_there upgraded
DAEMON=$("$FOREBAY" status --json --admin "$ADMIN" | python3 -c 'import json, sys; print(json.load(sys.stdin)["daemon"]["pid"])')
kill -TERM "$DAEMON"
eventually 30 eval "! kill -0 $DAEMON 2>/dev/null" || fail "the successor does not end"

say "after an orderly stop it is opened as soon as that can be recorded"
fill
serve
alarmed pool.failed || fail "it is served, and nothing says that it is in use: $(cat "$T/ask.out")"
grep -q 'tried again until state_dir takes writes' "$T/ask.out" || fail "it does not say what comes: $(cat "$T/ask.out")"
rm "$T/state/filler"
eventually 30 quiet pool.failed || fail "it is not opened: $(cat "$T/ask.out")"
connect
still_there opened
unserve
"$FOREBAY" check "$T/flash.img" || fail "forebay check finds fault with the cache"

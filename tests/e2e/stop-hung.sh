#!/usr/bin/env bash
# Backing stores that do not answer hold up nobody but their own volumes: not the control calls of others, and not the end of the
# daemon. What is dirty is safe in the cache, the exit code and the log say what was not closed, and the next daemon serves what
# can be served, by itself, as soon as the devices are free. The stores are files of another daemon, which is stopped.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 flock
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
READY_SECONDS=60
export E2E

truncate -s 64M "$T/disk.img" "$T/good.img"
mkdir "$T/slow" "$T/other"
# Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
"$FOREBAY" run --io psync --backing "file:$T/disk.img" --cache "$T/other.img:64MiB" --export "fuse:$T/slow/disk.img" \
    --export "fuse:$T/other/disk.img" >"$T/other.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs TERM $OTHER; umount -l $T/slow $T/other"
eventually "$READY_SECONDS" test -e "$T/other/disk.img" || fail "the slow stores are not there: $(cat "$T/other.out")"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.good]
pool = "fast"
backing = "file:$T/good.img"
exports = ["nbd+unix:///good?socket=$T/good.sock"]
idle_delay = "off"

[volume.hung]
pool = "fast"
backing = "file:$T/slow/disk.img"
exports = ["nbd+unix:///hung?socket=$T/hung.sock"]
idle_delay = "off"
END
cat >"$T/io.py" <<'END'
import os, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, WRITE, Client
what, socket, export, byte = sys.argv[1:]
client = Client(socket, export, timeout=60)
block = bytes([int(byte)]) * 4096
for at in range(0, 1 << 20, 4096):
    if what == "write":
        assert client.call(WRITE, at, 4096, block)[0] == 0
    elif what == "read":
        assert client.call(READ, at, 4096) == (0, block), f"wrong data at {at}"
if what == "write":
    assert client.call(FLUSH)[0] == 0
if what == "hang":
    client.request(READ, 1, 32 << 20, 4096)
    # Behind it, and answered at once: then it was taken.
    client.request(READ, 2, 0, 4096)
    assert client.reply() == (0, 2) and len(client.receive(4096)) == 4096
    print("hangs", flush=True)
    client.socket.settimeout(None)
    client.socket.recv(16)
END
io() { python3 "$T/io.py" "$1" "$T/$2.sock" "$2" "$3" || fail "$1 of $2"; }
quick() { # a control call that has nothing to do with the hung store
    local began=$SECONDS
    timeout 20 "$FOREBAY" "$@" --admin "$ADMIN" >"$T/quick.out" 2>&1 || fail "forebay $*: $(cat "$T/quick.out")"
    [ $((SECONDS - began)) -le 8 ] || fail "forebay $* took $((SECONDS - began)) s"
}

serves() { "$FOREBAY" volume show "$1" --admin "$ADMIN" 2>/dev/null | grep serving >/dev/null; }
serve
io write good 7
io write hung 8
kill -STOP "$OTHER"

say "one attach to a store that hangs fails in time, and holds up nobody"
"$FOREBAY" volume attach third --backing "file:$T/other/disk.img" --admin "$ADMIN" >"$T/attach.out" 2>&1 &
ATTACH=$!
being_attached() {
    code=0
    timeout 40 "$FOREBAY" volume attach third --backing "file:$T/other/disk.img" --admin "$ADMIN" >"$T/second.out" 2>&1 || code=$?
    [ "$code" = 1 ] && grep -q 'being attached' "$T/second.out"
}
sleep 1
being_attached || fail "a second attach: $code, $(cat "$T/second.out")"
quick status
quick set good dirty_high_pct=40
quick volume show good
quick flush good
kill -0 "$ATTACH" || fail "others were held up, or it did not wait: $(cat "$T/attach.out")"
code=0
wait "$ATTACH" || code=$?
[ "$code" = 1 ] && grep -q 'does not answer' "$T/attach.out" || fail "attach: $code, $(cat "$T/attach.out")"
if grep -q third "$T/forebay.toml"; then fail "what failed is in the configuration"; fi
io write good 9

say "SIGTERM while a detach hangs: said at once, over within a limit, and what is left is told"
python3 "$T/io.py" hang "$T/hung.sock" hung 0 >"$T/hang.out" 2>/dev/null &
on_exit "kill_jobs TERM $!"
eventually 20 grep -q hangs "$T/hang.out" || fail "nothing hangs"
"$FOREBAY" volume detach hung --keep --force --background --admin "$ADMIN" >"$T/detach.out" 2>&1 || fail "detach: $(cat "$T/detach.out")"
sleep 1
began=$SECONDS
kill -TERM "$DAEMON"
eventually 10 grep -q 'fast: stopping' "$T/stderr" || fail "nothing is said of the stop"
code=0
wait "$DAEMON" || code=$?
took=$((SECONDS - began))
DAEMON=
say "it took $took s"
[ "$code" = 1 ] || fail "exit code $code of a stop that left a cache open"
[ "$took" -le 50 ] || fail "the stop took $took s"
grep -q "stopped without closing the cache: file:.*/slow/disk.img of hung has not answered" "$T/stderr" || fail "not said"
cp "$T/stderr" "$T/stderr.stop"

say "the next daemon serves what can be served, while the store still hangs"
serve
io read good 9
quick status
kill -9 "$DAEMON"
wait "$DAEMON" 2>/dev/null || true

say "after kill -9 as well; and the hung volume once its store answers"
kill -CONT "$OTHER"
serve
if ! grep -q 'ready: .*hung' "$T/stdout" "$T/stderr"; then
    eventually 30 serves hung || ask volume attach hung
fi
io read good 9
io read hung 8
unserve

say "a cache that somebody else has is waited for, and opened when it is free"
mkfifo "$T/word"
flock "$T/flash.img" sh -c 'echo held; read -r _' <"$T/word" >"$T/holder.out" &
HOLDER=$!
exec 8>"$T/word"
eventually 20 grep -q held "$T/holder.out" || fail "the cache cannot be held"
serve
"$FOREBAY" status --admin "$ADMIN" >"$T/status.out"
grep -q 'is in use by another process.*tried again' "$T/status.out" || fail "no alarm: $(cat "$T/status.out")"
echo go >&8 # the daemon has the pipe as well
exec 8>&-
wait "$HOLDER" || fail "who has held the cache"
eventually 20 serves good || fail "the pool stays closed: $("$FOREBAY" status --admin "$ADMIN")"
quiet() { "$FOREBAY" status --admin "$ADMIN" >"$T/status.out" && ! grep -q 'tried again' "$T/status.out"; }
eventually 20 quiet || fail "the alarm stays: $(cat "$T/status.out")"
io read good 9
io read hung 8
unserve

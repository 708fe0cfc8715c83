#!/usr/bin/env bash
# A volume that is in use is not taken away by mistake: who has its file open, or is connected, is named. With --force, and at an
# orderly stop, every request that was taken is answered before its connection is closed.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 curl
export E2E

truncate -s 128M "$T/db.img" "$T/file.img"
TCP=$(free_port)
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock", "nbd://127.0.0.1:$TCP/db"]
emulate = "hdd-7200"
END
cat >"$T/flight.py" <<'END'
# 64 requests and more are under way (misses on a slow store, and writes), then somebody takes the volume away: all are answered.
import os, subprocess, sys, time
sys.path.insert(0, os.environ["E2E"])
from nbd_client import READ, WRITE, Client, Disconnected
place, command = sys.argv[1], sys.argv[2:]
client = Client(place, "db", timeout=60)
for cookie in range(64):
    if cookie % 4:
        client.request(READ, cookie, (cookie * 7919 % 1000) * 65536, 16384)
    else:
        client.request(WRITE, cookie, (100 << 20) + cookie * 65536, 4096, bytes([cookie]) * 4096)
# One more, which is answered at once: requests are taken in their order, so all of them have been.
client.request(WRITE, 64, 120 << 20, 4096, bytes(4096))
answered = {}
def take():
    error, cookie = client.reply()
    assert not error, f"request {cookie}: error {error}"
    if cookie % 4:
        client.receive(16384)
    answered[cookie] = True
while 64 not in answered:
    take()
print(f"{65 - len(answered)} are under way")
taker = subprocess.Popen(command)
try:
    while len(answered) < 65:
        take()
except Disconnected as error:
    raise SystemExit(f"cut off after {len(answered)} of 65 answers: {error}")
try:
    raise SystemExit(f"an answer to nothing: {client.receive(1)}")
except Disconnected:
    pass
assert taker.wait(60) == 0, "it was not taken away"
print("all were answered")
END
cat >"$T/idle.py" <<'END'
# Is connected and idle until it is told to go on.
import os, sys, time
sys.path.insert(0, os.environ["E2E"])
from nbd_client import READ, Client
client = Client(sys.argv[1] + "/nbd.sock", "db")
open(sys.argv[1] + "/there", "w").close()
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.05)
assert client.call(READ, 0, 4096)[0] == 0
END
serve
attach() {
    ask volume attach db --backing "file:$T/db.img" --export "nbd+unix:///db?socket=$T/nbd.sock" \
        --export "nbd://127.0.0.1:$TCP/db" --set emulate=hdd-7200
}

say "a client that is only connected is in the way, and is named"
python3 "$T/idle.py" "$T" &
CLIENT=$!
eventually 20 test -e "$T/there" || fail "the client does not come"
for how in "" --keep --discard; do
    # shellcheck disable=SC2086 # an option or nothing
    refused 1 "db: it is in use: 1 NBD client connected .*process $CLIENT
--force" "$FOREBAY" volume detach db $how --admin "$ADMIN"
done
refused 1 'cannot shrink db: it is in use' "$FOREBAY" volume resize db 64MiB --admin "$ADMIN"
code=$(curl -s -o "$T/answer" -w '%{http_code}' --unix-socket "$ADMIN" -X DELETE "http://forebay/v1/volumes/db?how=drain")
[ "$code" = 409 ] || fail "HTTP status $code: $(cat "$T/answer")"
touch "$T/go"
wait "$CLIENT" || fail "the client was harmed by what was refused"

say "nobody is there any more: it shrinks, and is detached, at once"
ask volume resize db 127MiB
ask volume detach db

for place in "$T/nbd.sock" "127.0.0.1:$TCP"; do
    say "--force answers what is under way ($place)"
    attach
    python3 "$T/flight.py" "$place" "$FOREBAY" volume detach db --keep --force --admin "$ADMIN" || fail "requests were cut off"
    say "and so does SIGTERM"
    attach
    python3 "$T/flight.py" "$place" kill -TERM "$DAEMON" || fail "requests were cut off by SIGTERM"
    wait "$DAEMON" || fail "the daemon ended with code $?"
    serve
    ask volume detach db
done

if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
    unserve
    exit 0
fi
say "a file that is open is in the way, and is named"
mkdir "$T/home"
on_exit "umount -l $T/home"
ask volume attach file --backing "file:$T/file.img" --export "fuse:$T/home/disk.img"
exec 7<>"$T/home/disk.img"
"$FOREBAY" volume show file --json --admin "$ADMIN" >"$T/show.json"
grep -Eq '"connections": *1\b' "$T/show.json" || fail "the file is open, and nobody counts: $(cat "$T/show.json")"
refused 1 "file: it is in use: $T/home/disk.img is open once
fuser" "$FOREBAY" volume detach file --admin "$ADMIN"
printf data >&7 || fail "the file was taken away"
exec 7>&-
if command -v mkfs.ext4 losetup >/dev/null && LOOP=$(losetup --find --show "$T/home/disk.img"); then
    on_exit "losetup --detach $LOOP"
    say "so is a file system that is mounted from it, and writes"
    mkfs.ext4 -q "$LOOP"
    mkdir "$T/mnt"
    mount "$LOOP" "$T/mnt"
    on_exit "umount -l $T/mnt"
    (while echo more >>"$T/mnt/log"; do :; done) 2>/dev/null &
    WRITER=$!
    on_exit "kill_jobs TERM $WRITER"
    refused 1 'in use.*is open' "$FOREBAY" volume detach file --admin "$ADMIN"
    kill "$WRITER"
    wait "$WRITER" 2>/dev/null || true
    unmount "$LOOP" "$T/mnt"
    losetup --detach "$LOOP"
fi
ask volume detach file
say "with --force the file is gone, whoever has it open"
ask volume attach file --backing "file:$T/file.img" --export "fuse:$T/home/disk.img"
exec 7<>"$T/home/disk.img"
ask volume detach file --force
[ ! -e "$T/home/disk.img" ] || fail "the file is still there"
if { printf data >&7; } 2>/dev/null; then fail "a write to what is gone succeeded"; fi
exec 7>&-
unserve

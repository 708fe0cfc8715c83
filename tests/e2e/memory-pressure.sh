#!/usr/bin/env bash
# Clients that ask for more than the memory of the pool and read nothing for a while: no data without its header, no write of
# the engine that fails for want of memory, and everything is answered in the end.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need nbdcopy python3

truncate -s 96M "$T/vol.img"
truncate -s 1M "$T/small.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
buffer_memory = "192MiB"

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$T/nbd.sock"]
connections_max = 300

[pool.few]
devices = [{ path = "$T/flash2.img", size = "64MiB" }]
buffer_memory = "192MiB"
pool_connections_max = 400

[volume.small]
pool = "few"
backing = "file:$T/small.img"
exports = ["nbd+unix:///small?socket=$T/small.sock"]
END
export E2E
serve
idle=$(awk '/^VmHWM/ { print $2 }' "/proc/$DAEMON/status")
random_file "$T/in" 96
nbdcopy --connections=4 --flush "$T/in" "nbd+unix:///vol?socket=$T/nbd.sock"
for clients in 1 4; do
    say "$clients clients with 150 requests of 1 MiB each"
    timeout 60 python3 "$E2E/nbd_pressure.py" "$T/nbd.sock" - "$T/in" $clients 150 || fail "replies under pressure"
done
say "clients that never read"
python3 "$E2E/nbd_slow.py" slow "$T/nbd.sock" vol 8 || fail "clients that read nothing starve the others"
logged 'takes no answers' # or nobody was disconnected, and the test tests nothing
say "more clients than may be"
python3 "$E2E/nbd_slow.py" many "$T/nbd.sock" vol 3000 300 || fail "too many clients"
# Few of many refusals are told, and what was told before counts too: until it is this one's turn there are more of them.
for ((tries = 10; tries > 0; tries--)); do
    grep -q 'is refused: "vol" has 300 connections' "$T/stderr" && break
    sleep 2
    python3 "$E2E/nbd_slow.py" many "$T/nbd.sock" vol 310 300 || fail "too many clients, again"
done
[ "$tries" -gt 0 ] || fail "the log does not say it: $(tail -n 3 "$T/stderr")"
python3 "$E2E/nbd_slow.py" many "$T/small.sock" small 1000 400 || fail "too many clients of a pool"
logged 'there are 400 connections'

# What it had before there was a client, the memory for requests of all pools, and for each connection its tables and what the
# kernel's allocator keeps: 64 KiB.
rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$DAEMON/status")
bound=$((idle + 2 * (192 << 10) + 800 * 64 + (32 << 10)))
say "memory: $rss kB at most, idle $idle kB, bound $bound kB"
[ "$rss" -lt "$bound" ] || fail "clients made the daemon take $rss kB of memory, more than $bound"
if grep -q "failed" "$T/stderr"; then fail "clients took the memory that the engine needs"; fi
stop

say "few descriptors: clients wait, and are served when others go"
serve_with_few() { (ulimit -n 80 && exec "$FOREBAY" serve --config "$T/forebay.toml") >"$T/stdout" 2>>"$T/stderr" & DAEMON=$!; }
: >"$T/stderr"
serve_with_few
eventually "$READY_SECONDS" grep -q 'forebay: serving' "$T/stderr" || fail "not ready"
python3 - "$T/nbd.sock" <<'END'
import os, sys
sys.path.insert(0, os.environ["E2E"])
import socket
from nbd_client import READ, Client
clients = []
for _ in range(100):
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(5)
    stream.connect(sys.argv[1])
    try:
        if not stream.recv(18):
            break
    except TimeoutError:
        break
    clients.append(stream)
else:
    raise SystemExit("100 clients with 80 descriptors: the test tests nothing")
assert len(clients) > 10, len(clients)
for stream in clients:
    stream.close()
last = Client(sys.argv[1], "vol", timeout=30)
assert last.call(READ, 0, 4096)[0] == 0
print(f"{len(clients)} clients with 80 descriptors, then one more")
END
logged 'cannot be accepted'
stop

say "locked memory"
sed -i 's/^state_dir = .*/&\nlock_memory = "yes"/' "$T/forebay.toml"
if [ "$(id -u)" -eq 0 ]; then
    serve
    locked=$(awk '/^VmLck/ { print $2 }' "/proc/$DAEMON/status")
    [ "$locked" -gt 10000 ] || fail "lock_memory = \"yes\", and $locked KiB are locked"
    echo "$locked KiB locked"
    stop
    install -m 755 "$FOREBAY" "$T/forebay"
    chmod 755 "$T"
    code=0
    timeout 60 prlimit --memlock=1048576 setpriv --reuid 4711 --regid 4711 --clear-groups --inh-caps=-all \
        "$T/forebay" serve --config "$T/forebay.toml" >"$T/refused" 2>&1 || code=$?
    [ "$code" -eq 1 ] || fail "exit code $code for memory that may not be locked: $(cat "$T/refused")"
    grep -q 'may lock 1048576 bytes only (RLIMIT_MEMLOCK)' "$T/refused" || fail "it does not say why: $(cat "$T/refused")"
fi

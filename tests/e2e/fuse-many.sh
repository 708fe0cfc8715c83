#!/usr/bin/env bash
# Many FUSE files in one pool at the defaults: each is read and written, also while one of them and NBD clients take all memory that
# they can get. A file for which there is no memory is refused, by the check and by the attach, with what would do.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/fuse-lib.sh"
need python3
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
COUNT=20

on_exit abort_fuse

volumes() { # MEMORY COUNT
    printf '[pool.fast]\ndevices = [{ path = "%s/flash.img", size = "64MiB" }]\nbuffer_memory = "%s"\n' "$T" "$1"
    local number
    for number in $(seq "$2"); do
        printf '[volume.v%s]\npool = "fast"\nbacking = "file:%s/disk%s"\n' "$number" "$T" "$number"
        printf 'exports = ["fuse:%s/m%s/v%s", "nbd+unix:///v%s?socket=%s/nbd.sock"]\n' "$T" "$number" "$number" "$number" "$T"
    done
}
for number in $(seq 32); do truncate -s 64M "$T/disk$number"; done

cat >"$T/each.py" <<'END2'
# Writes, reads and flushes each file from a process of its own, with large and small requests: none may hang.
import os, subprocess, sys, time
if len(sys.argv) == 2:
    fd = os.open(sys.argv[1], os.O_RDWR)
    for length in (4096, 1 << 20, 1000):
        data = os.urandom(length)
        for at in (0, 5 << 20, 4321):
            assert os.pwrite(fd, data, at) == length
            assert os.pread(fd, length, at) == data
    os.fsync(fd)
    os._exit(0)
limit, files = float(sys.argv[1]), sys.argv[2:]
began = time.monotonic()
work = [(path, subprocess.Popen([sys.executable, sys.argv[0], path])) for path in files]
bad = []
for path, process in work:
    try:
        if process.wait(max(0.1, limit - (time.monotonic() - began))):
            bad.append(path + " failed")
    except subprocess.TimeoutExpired:
        bad.append(path + " hangs")
print(f"{len(files)} files in {time.monotonic() - began:.1f} s")
sys.exit(", ".join(bad) or 0)
END2

say "$COUNT FUSE files at the defaults: every one is answered"
volumes 512MiB $COUNT | config
serve
files() { local number; for number in $(seq "$1"); do echo "$T/m$number/v$number"; done; }
mapfile -t all < <(files $COUNT)
timeout 120 python3 "$T/each.py" 60 "${all[@]}" || fail "a file that is said to be served is not"
unserve

say "the least memory there can be: a crowd on one file and on NBD does not keep the others from being answered"
volumes 192MiB 31 | config
serve
cat >"$T/crowd.py" <<'END2'
# Takes all memory it can get: writes and reads of the longest kind over NBD, whose answers nobody takes, and over one file.
import os, sys, threading, time
sys.path.insert(0, os.environ["E2E"])
from nbd_client import READ, Client
path, file, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
until = time.monotonic() + seconds
def over_fuse():
    fd = os.open(file, os.O_RDWR)
    data = os.urandom(1 << 20)
    at = 0
    while time.monotonic() < until:
        os.pwrite(fd, data, at % 32 << 20)
        at += 1
for _ in range(24):
    threading.Thread(target=over_fuse, daemon=True).start()
clients = []
while time.monotonic() < until:
    try:
        client = Client(path, "v2", timeout=60)
        for cookie in range(8):
            client.request(READ, cookie, 0, 32 << 20)
        clients.append(client)
    except Exception as error:
        print(error)
    time.sleep(0.3)
os._exit(0)
END2
export E2E
timeout 120 python3 "$T/crowd.py" "$T/nbd.sock" "$T/m1/v1" 25 &
CROWD=$!
on_exit "kill_jobs KILL $CROWD"
sleep 2
mapfile -t others < <(files 31 | tail -n 29)
timeout 120 python3 "$T/each.py" 60 "${others[@]}" || fail "a file starves beside a crowd"
wait "$CROWD" || fail "the crowd"

say "one more does not fit: the attach says what would do"
if timeout 60 "$FOREBAY" volume attach v32 --pool fast --backing "file:$T/disk32" --export "fuse:$T/m32/v32" \
    --admin "$ADMIN" >"$T/ask.out" 2>&1; then fail "a file without memory is said to be served"; fi
grep -q 'buffer_memory' "$T/ask.out" || fail "no advice: $(cat "$T/ask.out")"
timeout 10 ls "$T" >/dev/null || fail "ls hangs"
[ ! -e "$T/m32" ] || fail "the refused file left its folder behind"
timeout 60 python3 "$T/each.py" 30 "$T/m31/v31" || fail "the others"
unserve

say "and the check of the configuration says it before anything is started"
volumes 192MiB 32 | config
refused 1 'buffer_memory' "$FOREBAY" config check "$T/forebay.toml"
sed -i "s|192MiB|$(grep -o 'buffer_memory = \?[0-9]*MiB\|to [0-9]*MiB' "$T/refused.err" | grep -o '[0-9]*MiB' | tail -n 1)|" "$T/forebay.toml"
"$FOREBAY" config check "$T/forebay.toml" >"$T/check.out" 2>&1 || { cat "$T/check.out"; fail "the advice, followed, is not enough"; }

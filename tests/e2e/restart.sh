#!/usr/bin/env bash
# Restart without an I/O error. Under a service manager the daemon is killed and upgraded while fio (through nbdkit, which connects
# again) and qemu-io (which does so itself) use it: they see pauses, and nothing else. Then clients that cannot connect again go
# through upgrades alone. And a successor that cannot start leaves everything as it was.
# KILLS=50 UPGRADES=50 for the long run.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/tls-lib.sh"
need_fio
need curl
need python3 nbdkit qemu-io
nbdkit --dump-plugin nbd >/dev/null 2>&1 || skip "this nbdkit has no nbd plugin"

KILLS=${KILLS:-3}
UPGRADES=${UPGRADES:-3}
PLAIN_UPGRADES=${PLAIN_UPGRADES:-3}
export PYTHONPATH=$E2E

truncate -s 256M "$T/vol.img"
truncate -s 64M "$T/other.img"
# A copy, so that the program can be replaced while it runs.
cp "$FOREBAY" "$T/forebay"
METRICS=127.0.0.1:$(free_port)
config <<END
metrics_listen = "$METRICS"

[pool.fast]
devices = [{ path = "$T/flash.img", size = "96MiB" }]

[pool.second]
devices = [{ path = "$T/flash2.img", size = "64MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$T/nbd.sock"]
dirty_low_pct = 5

[volume.other]
pool = "second"
backing = "file:$T/other.img"
exports = ["nbd+unix:///other?socket=$T/other.sock"]
END

# --- under the stand-in for systemd
mkdir "$T/manager"
managed() {
    : >"$T/stderr"
    python3 "$E2E/service_manager.py" "$T/manager" "$T/forebay" serve --config "$T/forebay.toml" \
        >"$T/manager.out" 2>>"$T/stderr" &
    MANAGER=$!
    for ((tries = READY_SECONDS * 20; tries > 0; tries--)); do
        [ -s "$T/manager/ready" ] && return
        sleep 0.05
    done
    fail "not ready after $READY_SECONDS s"
}
# Whatever happens, nothing stays behind: the manager first, or it would start another.
on_exit 'main=$(cat "$T/manager/main.pid"); grep -aq "$T/" "/proc/$main/cmdline" && kill -9 "$main"'
on_exit 'kill_jobs KILL $MANAGER'
on_exit 'kill_jobs TERM $NBDKIT'

fio_on() { # NAME URI OPTION...
    verifies "$1" --ioengine=nbd --uri="$2" --iodepth=16 --bsrange=4k-64k "${@:3}"
}
# Many short jobs that write and verify, until the file $T/enough is there.
fio_until_enough() { # NAME URI OPTION...
    local rounds=0
    until [ -e "$T/enough" ]; do
        rounds=$((rounds + 1))
        fio_on "$@" --randseed="$rounds" --do_verify=1 || return 1
    done
    echo "$rounds" >"$T/fio-$1.rounds"
}
# What was written is read again, block by block, with patterns that change.
qemu_until_enough() {
    local round=0
    until [ -e "$T/enough" ]; do
        round=$((round % 250 + 1))
        echo "write -P $round 200M 1M"
        echo "aio_write -P $((round + 1)) 201M 512k"
        echo "aio_flush"
        echo "read -P $round 200M 1M"
        echo "read -P $((round + 1)) 201M 512k"
        sleep 0.02
    done | qemu-io -t none --image-opts \
        "driver=nbd,server.type=unix,server.path=$T/nbd.sock,export=vol,reconnect-delay=120" >"$T/qemu.out" 2>&1 || return 1
    ! grep -Ei 'error|failed|mismatch|fail' "$T/qemu.out"
}
# Whoever asks for metrics may be cut off by a kill, and is never refused (7).
metrics_until_enough() {
    local code asked=0
    until [ -e "$T/enough" ]; do
        code=0
        curl -sS -o "$T/metrics" "http://$METRICS/metrics" 2>"$T/metrics.err" || code=$?
        [ "$code" != 7 ] || return 1
        asked=$((asked + 1))
        sleep 0.1
    done
    [ "$asked" -gt 10 ] && grep -q '^forebay_build_info' "$T/metrics"
}
drill() {
    python3 "$E2E/restart_drill.py" --folder "$T/manager" --admin "$ADMIN" --forebay "$FOREBAY" --seed "${SEED:-1}" "$@" \
        --json "$T/drill.json" || fail "the drill: $(tail -n 20 "$T/stderr")"
    if grep -q 'panicked at' "$T/stderr"; then fail "the daemon panicked: $(grep -m 3 'panicked' "$T/stderr")"; fi
}

managed
nbdkit -f -U "$T/kit.sock" --filter=retry nbd socket="$T/nbd.sock" export=vol retries=100 retry-delay=1 \
    retry-exponential=no >"$T/nbdkit.out" 2>&1 &
NBDKIT=$!
eventually 20 test -S "$T/kit.sock" || { cat "$T/nbdkit.out"; fail "nbdkit"; }

say "$KILLS kills and $UPGRADES upgrades under fio (nbdkit's retry) and qemu-io (reconnect-delay)"
fio_until_enough kit "nbd+unix:///?socket=$T/kit.sock" --rw=randwrite --size=32M &
FIO=$!
qemu_until_enough &
QEMU=$!
metrics_until_enough &
SCRAPER=$!
drill --socket "$T/nbd.sock" --export vol --kills "$KILLS" --upgrades "$UPGRADES"
touch "$T/enough"
wait "$FIO" || { cat "$T/fio-kit.out"; fail "fio saw an error, or wrong data"; }
wait "$QEMU" || { tail "$T/qemu.out"; fail "qemu-io saw an error, or wrong data"; }
wait "$SCRAPER" || fail "the port of the metrics was closed meanwhile: $(cat "$T/metrics.err")"
say "fio: $(cat "$T/fio-kit.rounds") rounds of 32 MiB written and verified"
[ -z "${FIGURES:-}" ] || cp "$T/drill.json" "$FIGURES.mixed.json"

say "$PLAIN_UPGRADES upgrades under clients that cannot connect again"
rm "$T/enough"
fio_until_enough plain "nbd+unix:///vol?socket=$T/nbd.sock" --rw=randrw --size=32M --offset=64M &
FIO=$!
python3 "$E2E/nbd_writer.py" write --socket "$T/other.sock" --export other --state "$T/state.writer" \
    --seconds "$((PLAIN_UPGRADES * 2 + 4))" >"$T/writer.out" 2>&1 &
WRITER=$!
drill --socket "$T/nbd.sock" --export vol --kills 0 --upgrades "$PLAIN_UPGRADES"
touch "$T/enough"
wait "$FIO" || { cat "$T/fio-plain.out"; fail "fio without reconnect saw an error, or wrong data"; }
wait "$WRITER" || { cat "$T/writer.out"; fail "a client without reconnect"; }
grep -q 'under way at the end: 0' "$T/writer.out" || fail "the writer lost its connection: $(cat "$T/writer.out")"
python3 "$E2E/nbd_writer.py" verify --socket "$T/other.sock" --export other --state "$T/state.writer" || fail "wrong data"
[ -z "${FIGURES:-}" ] || cp "$T/drill.json" "$FIGURES.plain.json"

say "a successor that cannot start, or cannot serve, leaves the old daemon serving"
before=$(cat "$T/manager/main.pid")
cat >"$T/keep.py" <<'END'
# A connection that must still be there at the end.
import sys
from nbd_client import READ, WRITE, Client
client = Client(sys.argv[1], "vol")
block = b"k" * 4096
assert client.call(WRITE, 0, 4096, block)[0] == 0
print("there", flush=True)
sys.stdin.readline()
assert client.call(READ, 0, 4096) == (0, block)
print("still there", flush=True)
END
mkfifo "$T/word"
begin_to_keep() {
    python3 "$T/keep.py" "$T/nbd.sock" <"$T/word" >"$T/keep.out" 2>&1 &
    KEEPER=$!
    exec 8>"$T/word"
    eventually 20 grep -q there "$T/keep.out" || { cat "$T/keep.out"; fail "a client"; }
}
begin_to_keep
mv "$T/forebay" "$T/forebay.good"
cp /bin/false "$T/forebay"
refused 1 'upgrade' "$FOREBAY" upgrade --admin "$ADMIN"
mv -f "$T/forebay.good" "$T/forebay"
# The successor opens the first pool and cannot have the second one.
cp "$T/forebay.toml" "$T/forebay.toml.good"
fail_to_upgrade() {
    sed -i "s|$T/flash2.img|$T/forebay.toml.good|" "$T/forebay.toml"
    refused 1 'not served|not upgraded' "$FOREBAY" upgrade --admin "$ADMIN"
    cp "$T/forebay.toml.good" "$T/forebay.toml"
}
fail_to_upgrade
[ "$(cat "$T/manager/main.pid")" = "$before" ] || fail "another process is the daemon"
echo go >&8
wait "$KEEPER" || { cat "$T/keep.out"; fail "the connection did not survive two failed upgrades"; }
python3 "$E2E/nbd_writer.py" verify --socket "$T/other.sock" --export other --state "$T/state.writer" || fail "wrong data"
say "and the next one works"
ask upgrade
kill "$MANAGER"
wait "$MANAGER" || fail "the daemon ended with an error after SIGTERM"
"$FOREBAY" check "$T/flash.img" || fail "forebay check finds fault with the cache"

say "the same without a service manager: socket files stay the same ones, until an orderly end"
unset NOTIFY_SOCKET LISTEN_PID LISTEN_FDS LISTEN_FDNAMES
rm -f "$T/nbd.sock" "$T/other.sock" "$ADMIN"
serve
begin_to_keep
before=$(stat -c %i "$T/nbd.sock" "$T/other.sock" "$ADMIN")
fail_to_upgrade
[ "$(stat -c %i "$T/nbd.sock" "$T/other.sock" "$ADMIN")" = "$before" ] || fail "a successor that gave up removed a socket file"
echo go >&8
wait "$KEEPER" || { cat "$T/keep.out"; fail "the connection did not survive a failed upgrade"; }
ask pool list
unserve
[ ! -e "$T/nbd.sock" ] || fail "an orderly end left a socket file"

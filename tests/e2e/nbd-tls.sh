#!/usr/bin/env bash
# NBD over TLS with real clients: mutual certificates, everything else refused, STARTTLS as an attacker would try it,
# certificates exchanged while clients are connected, and what fio verifies.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/tls-lib.sh"
need openssl nbdinfo nbdcopy qemu-io qemu-img nbdkit python3

authority "$PKI/ca"
authority "$PKI/other"
certificate "$PKI/ca" server server DNS:localhost IP:127.0.0.1
certificate "$PKI/ca" client alice
certificate "$PKI/other" client mallory
cp "$PKI/ca/ca-cert.pem" "$PKI/mallory/ca-cert.pem" # trusts the server, is not trusted by it
mkdir "$PKI/nobody"
cp "$PKI/ca/ca-cert.pem" "$PKI/nobody/ca-cert.pem"

PORT=$(free_port)
truncate -s 96M "$T/vol.img"
config <<END
[tls.lan]
cert_file = "$PKI/server/server-cert.pem"
key_file = "$PKI/server/server-key.pem"
client_ca_file = "$PKI/ca/ca-cert.pem"

[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
buffer_memory = "192MiB"

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbds://127.0.0.1:$PORT/vol?tls=lan", "nbds+unix:///vol?socket=$T/tls.sock&tls=lan"]
END
serve
grep -Fq "ready: nbds://127.0.0.1:$PORT/vol" "$T/stderr" || fail "the URI for clients was not told"

uri() { echo "nbds://localhost:$PORT/vol?tls-certificates=$PKI/$1"; }
IMAGE="driver=nbd,host=localhost,port=$PORT,export=vol,tls-creds=tls"
creds() { echo "tls-creds-x509,id=tls,endpoint=client,dir=$PKI/$1"; }

say "libnbd and QEMU with certificates"
[ "$(nbdinfo --size "$(uri alice)")" = $((96 << 20)) ] || fail "the size over TLS"
nbdinfo "$(uri alice)" >"$T/info" || fail "nbdinfo"
grep -q 'with TLS' "$T/info" || { cat "$T/info"; fail "libnbd says that there is no TLS"; }
nbdinfo --size "nbds+unix:///vol?socket=$T/tls.sock&tls-hostname=localhost&tls-certificates=$PKI/alice" >/dev/null ||
    say "(this libnbd takes no host name for a unix socket: not tried)"
random_file "$T/in" 96
nbdcopy --connections=4 --flush "$T/in" "$(uri alice)"
nbdcopy --connections=4 "$(uri alice)" "$T/out"
assert_same "$T/in" "$T/out" "copied in and out over TLS"
say "clients that ask for more than the memory of the pool and read nothing for a while"
# More than once around: 450 MiB of replies, and 192 MiB for them and for the engine, which must go on as well.
timeout 100 python3 "$E2E/nbd_pressure.py" "$PORT" "$PKI/alice" "$T/in" 3 150 || fail "replies over TLS under pressure"
say "clients that stop in the middle of a write"
E2E=$E2E timeout 100 python3 - "$PORT" "$PKI/alice" <<'END' || fail "stalled clients over TLS keep others from being served"
import os, struct, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_pressure import connect, read
place, certificates = sys.argv[1:]
def header(length):
    return struct.pack(">IHHQQI", 0x25609513, 0, 1, 1, 0, length)
stalled = [connect(place, certificates) for _ in range(3)]
for stream in stalled:
    stream.sendall(header(32 << 20) + bytes(100_000))
honest = connect(place, certificates)
honest.settimeout(60)
for length in (4096, 8 << 20):
    honest.sendall(header(length) + bytes(length))
    assert read(honest, 16) == struct.pack(">IIQ", 0x67446698, 0, 1)
END
logged 'sends nothing more of a write'
if grep -q "failed" "$T/stderr"; then fail "clients took the memory that the engine needs"; fi
rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$DAEMON/status")
[ "$rss" -lt $((500 << 10)) ] || fail "clients made the daemon take $rss kB of memory"
qemu-io --object "$(creds alice)" --image-opts "$IMAGE" -c 'write -P 0x5a 4097 70001' -c 'read -P 0x5a 4097 70001' \
    -c 'write -z 1M 1M' -c 'read -P 0 1M 1M' -c flush >"$T/qemu" 2>&1 || { cat "$T/qemu"; fail "qemu-io over TLS"; }
if grep -Eiq 'failed|error' "$T/qemu"; then cat "$T/qemu"; fail "qemu-io over TLS"; fi
qemu-img convert -n --object "$(creds alice)" --image-opts "$IMAGE" "driver=raw,file.filename=$T/out" 2>/dev/null ||
    qemu-img map --object "$(creds alice)" --image-opts "$IMAGE" >/dev/null || fail "qemu-img over TLS"

say "who has no certificate, or one of somebody else's, gets nothing"
for who in nobody mallory; do
    refused '1' '' nbdinfo --size "$(uri $who)"
    refused '1' '' qemu-io --object "$(creds $who)" --image-opts "$IMAGE" -c 'read 0 512'
done
say "plaintext gets nothing"
refused '1' 'TLS' nbdinfo --size "nbd://localhost:$PORT/vol"
refused '1' 'TLS' qemu-img info "nbd://localhost:$PORT/vol"
refused '1' '' nbdkit -U - nbd uri="nbd://localhost:$PORT/vol" --run 'nbdinfo --size "$uri"'
refused '1' '' nbdinfo --size "nbd+unix:///vol?socket=$T/tls.sock"
VIA="hostname=localhost port=$PORT export=vol tls=require tls-certificates=$PKI/alice"
# shellcheck disable=SC2086 # several options in one word
nbdkit -U - nbd $VIA --run 'nbdinfo --size "$uri"' >/dev/null || fail "nbdkit as a client with TLS"

say "a client that is slow, in the background"
python3 "$E2E/nbd_starttls.py" "$PORT" slow >"$T/slow.out" 2>&1 &
SLOW=$!
for case in plaintext old_way injection endless; do
    say "STARTTLS: $case"
    timeout 60 python3 "$E2E/nbd_starttls.py" "$PORT" "$case" || fail "$case"
done

if fio --enghelp | grep -w nbd >/dev/null; then
    say "fio verifies over TLS (through nbdkit, as fio takes no names of certificates)"
    # shellcheck disable=SC2086,SC2016 # several options in one word; nbdkit's shell knows its URI
    (cd "$T" && nbdkit -U - nbd $VIA --run 'fio --name=tls --ioengine=nbd --uri="$uri" --iodepth=16 --rw=randrw \
        --bsrange=512-256k --blockalign=512 --size=64M --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --do_verify=1 --output=fio.out') || { cat "$T/fio.out"; fail "fio over TLS"; }
    if grep -Eq '^(verify|crc32c): ' "$T/fio.out"; then cat "$T/fio.out"; fail "fio found wrong data"; fi
fi
wait "$SLOW" || { cat "$T/slow.out"; fail "slow handshakes"; }
timeout 60 python3 "$E2E/nbd_starttls.py" "$PORT" crowd || fail "crowd"

say "a thousand that begin a handshake and are gone, three times: nothing of them stays"
of_daemon() { # connections, descriptors, kB of memory
    curl -s --unix-socket "$ADMIN" http://x/v1/stats >"$T/stats.json"
    connections=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["pools"]["fast"]["connections"])' <"$T/stats.json")
    descriptors=$(find "/proc/$DAEMON/fd" -mindepth 1 | wc -l)
    memory=$(awk '/^VmRSS/ { print $2 }' "/proc/$DAEMON/status")
}
# Whoever asks is there too: for a moment after the answer as well.
had='' had_memory=()
nobody_is_left() { of_daemon && [ "$connections" -eq 0 ] && [ "$descriptors" -le "${had:-99999}" ]; }
for round in 1 2 3 4 5 6 7; do
    timeout 60 python3 "$E2E/nbd_starttls.py" "$PORT" vanish >"$T/vanish.out" || fail "vanish"
    eventually 20 nobody_is_left || fail "$connections connections are left of those that have vanished, and $descriptors descriptors of ${had:-any}"
    echo "  $(cat "$T/vanish.out") began; $descriptors descriptors, $memory kB"
    had=${had:-$descriptors}
    # How many are there at once is by chance, and so is what it needs for them; but with what stays each time it would grow each time.
    had_memory+=("$memory")
    if [ "$round" -ge 3 ] && [ "$memory" -le $((had_memory[round - 3] + 4096)) ]; then break; fi
done
[ "$round" -lt 7 ] || fail "the memory grows: ${had_memory[*]} kB"
nbdcopy --connections=4 "$(uri alice)" "$T/out" || fail "an honest client afterwards"

say "new certificates on reload, while a client is connected"
# shellcheck disable=SC2086 # as above
nbdkit -U "$T/proxy.sock" -f nbd $VIA >"$T/proxy.log" 2>&1 &
on_exit "kill_jobs TERM $!"
eventually 20 test -S "$T/proxy.sock" || { cat "$T/proxy.log"; fail "no proxy"; }
nbdinfo --size "nbd+unix:///?socket=$T/proxy.sock" >/dev/null || { cat "$T/proxy.log"; fail "the proxy"; }
mv "$PKI/server" "$PKI/old-server"
certificate "$PKI/other" server server DNS:localhost
ask reload
grep -q 'certificates of tls.lan' "$T/ask.out" || { cat "$T/ask.out"; fail "the reload does not say what it did"; }
refused '1' '' nbdinfo --size "$(uri alice)"
cp "$PKI/other/ca-cert.pem" "$PKI/alice/ca-cert.pem"
nbdinfo --size "$(uri alice)" >/dev/null || fail "the new certificate is not served"
nbdinfo --size "nbd+unix:///?socket=$T/proxy.sock" >/dev/null || fail "who was connected was cut off"
say "a broken one changes nothing, and TLS goes on"
echo garbage >"$PKI/server/server-key.pem"
if "$FOREBAY" reload --admin "$ADMIN" >"$T/reload.out" 2>&1; then fail "a reload with a broken key succeeded"; fi
grep -q 'tls.lan' "$T/reload.out" || { cat "$T/reload.out"; fail "the reload does not say what is wrong"; }
nbdinfo --size "$(uri alice)" >/dev/null || fail "after a broken reload nobody is served"
refused '1' 'TLS' nbdinfo --size "nbd://localhost:$PORT/vol"

say "refusals are events, and few of them; no secret is told"
"$FOREBAY" events --kind client --after oldest --admin "$ADMIN" >"$T/events" || fail "events"
grep -q 'client.refused' "$T/events" || { cat "$T/events"; fail "refusals are no events"; }
[ "$(wc -l <"$T/events")" -lt 100 ] || fail "$(wc -l <"$T/events") events: that is a flood"
"$FOREBAY" status --json --admin "$ADMIN" >"$T/status.json"
"$FOREBAY" config check --config "$T/forebay.toml" >"$T/check.out" 2>&1 || true
no_secrets "$T/stderr" "$T/stdout" "$T/events" "$T/status.json" "$T/check.out" "$T/reload.out" "$T/ask.out"
if grep -q 'panicked at' "$T/stderr"; then fail "the daemon panicked"; fi
kill -0 "$DAEMON" || fail "the daemon is gone"
stop

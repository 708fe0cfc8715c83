# shellcheck shell=bash
# Shared by the benchmarks that are shell scripts; sourced, not run. It gives each a private folder $T, starts and stops the
# daemon by its process number, and takes everything away at the end.
#
#   start [option...], stop   `forebay run` on $BACKING and $CACHE, serving $URI
#   config <<END ... END      writes $T/forebay.toml, with a [daemon] section of its own
#   serve                     starts `forebay serve` and waits until it serves
#   ask COMMAND...            a command of the operator, which must succeed
#   on_exit COMMAND           runs at the end, the newest first, whatever happens
#   free_port                 a TCP port that nothing else uses
#   authority, certificate    certificates, in $PKI
#   abort_fuse                ends FUSE connections of the daemon that do not answer

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FOREBAY=${FOREBAY:-$ROOT/target/release/forebay}
READY_SECONDS=${READY_SECONDS:-30}

T=$(mktemp -d "${TMPDIR:-/tmp}/forebay-e2e.XXXXXX")
SOCKET=$T/nbd.sock
export URI="nbd+unix:///vol?socket=$SOCKET"
BACKING=$T/backing.img
CACHE=$T/cache.img
CACHE_SIZE=${CACHE_SIZE:-64MiB}
export STATE_DIRECTORY=$T/run-state # of `forebay run`
DAEMON=
EXIT_HOOKS=()

on_exit() { EXIT_HOOKS+=("$*"); }

cleanup() {
    local code=$? hook
    trap - EXIT
    set +e
    for ((hook = ${#EXIT_HOOKS[@]} - 1; hook >= 0; hook--)); do
        eval "${EXIT_HOOKS[hook]}" >/dev/null 2>&1
    done
    if [ -n "$DAEMON" ]; then
        kill -9 "$DAEMON" 2>/dev/null
        wait "$DAEMON" 2>/dev/null
    fi
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ] && [ -s "$T/stderr" ]; then
        echo "--- what the daemon said last:"
        tail -n 20 "$T/stderr"
    fi
    if [ -e "$T/ports" ]; then xargs -r rm -f <"$T/ports"; fi
    if [ -n "${KEEP:-}" ]; then
        echo "kept: $T"
    else
        rm -rf --one-file-system "$T"
    fi
    exit "$code"
}

trap cleanup EXIT
trap 'exit 143' TERM INT

say() { echo "- $*"; }

fail() {
    echo "FAILED: $*"
    exit 1
}

fail() {
    echo "FAILED: $*"
    exit 1
}

free_port() {
    python3 - "${TMPDIR:-/tmp}/forebay-e2e-ports.$UID" "$T/ports" <<'END'
import os, random, socket, sys, time
taken, ours = sys.argv[1:]
os.makedirs(taken, exist_ok=True)
while True:
    port = random.randrange(20000, 32000)
    mark = f"{taken}/{port}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if time.time() - os.stat(mark).st_mtime < 3600:
            continue
        os.utime(mark)  # a test was killed that had it
    with open(ours, "a") as file, socket.socket() as tried:
        print(mark, file=file)
        try:
            tried.bind(("0.0.0.0", port))
        except OSError:
            continue
    print(port)
    break
END
}

skip() {
    echo "skipped: $*"
    exit 77
}

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip "$tool is not installed (scripts/setup installs it)"
    done
}

[ -x "$FOREBAY" ] || fail "no binary at $FOREBAY: build it with cargo build --release, or set FOREBAY"

make_backing() {
    truncate -s "$1" "$BACKING"
}

random_file() { # PATH MIB
    head -c "$(($2 << 20))" /dev/urandom >"$1"
}

start() {
    : >"$T/stdout"
    "$FOREBAY" run --backing "file:$BACKING" --cache "$CACHE:$CACHE_SIZE" --export "$URI" "$@" \
        >"$T/stdout" 2>>"$T/stderr" &
    DAEMON=$!
    local tries=$((READY_SECONDS * 20))
    until grep -q '^ready: ' "$T/stdout"; do
        if ! kill -0 "$DAEMON" 2>/dev/null; then
            local code=0
            wait "$DAEMON" || code=$?
            DAEMON=
            fail "the daemon ended with code $code before it was ready"
        fi
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "not ready after $READY_SECONDS s"
        sleep 0.05
    done
}

stop() {
    local code=0
    kill -TERM "$DAEMON" || fail "the daemon had already ended"
    wait "$DAEMON" || code=$?
    DAEMON=
    [ "$code" -eq 0 ] || fail "the daemon ended with code $code after SIGTERM, expected 0"
}

ADMIN=$T/admin.sock

config() {
    {
        printf '[daemon]\nadmin_socket = "%s"\nstate_dir = "%s"\n\n' "$ADMIN" "$T/state"
        cat
    } >"$T/forebay.toml"
}

serve() {
    : >"$T/stderr"
    "$FOREBAY" serve --config "$T/forebay.toml" >"$T/stdout" 2>>"$T/stderr" &
    DAEMON=$!
    local tries=$((READY_SECONDS * 20))
    until grep -q 'forebay: serving' "$T/stderr"; do
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon ended before it was ready"
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "not ready after $READY_SECONDS s"
        sleep 0.05
    done
}

ask() {
    timeout 120 "$FOREBAY" "$@" --admin "$ADMIN" >"$T/ask.out" 2>&1 || {
        cat "$T/ask.out"
        fail "forebay $*"
    }
}

PKI=$T/pki

ssl() {
    openssl "$@" 2>"$T/openssl.err" || {
        cat "$T/openssl.err"
        fail "openssl $1"
    }
}

authority() {
    mkdir -p "$1"
    ssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=test authority ${1##*/}" \
        -addext basicConstraints=critical,CA:TRUE -keyout "$1/ca-key.pem" -out "$1/ca-cert.pem"
}

certificate() {
    local ca=$1 kind=$2 name=$3 folder=$PKI/$3
    shift 3
    local names="" san
    for san in "$@"; do names="$names${names:+,}$san"; done
    mkdir -p "$folder"
    ssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" \
        -keyout "$folder/$kind-key.pem" -out "$folder/request.pem"
    chmod 600 "$folder/$kind-key.pem"
    {
        echo "extendedKeyUsage=${kind}Auth"
        if [ -n "$names" ]; then echo "subjectAltName=$names"; fi
    } >"$folder/extensions"
    ssl x509 -req -in "$folder/request.pem" -CA "$ca/ca-cert.pem" -CAkey "$ca/ca-key.pem" -CAcreateserial -days 2 \
        -extfile "$folder/extensions" -out "$folder/$kind-cert.pem"
    cp "$ca/ca-cert.pem" "$folder/ca-cert.pem"
}

abort_fuse() {
    local at
    mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections || true
    for at in $(awk -v t="$T/" 'index($5, t) == 1 && / - fuse.forebay / { split($3, d, ":"); print d[2] }' /proc/self/mountinfo); do
        echo 1 >"/sys/fs/fuse/connections/$at/abort" || true
    done
    if command -v losetup >/dev/null; then
        for at in $(losetup -n -O NAME,BACK-FILE | awk -v t="$T/" 'index($2, t) == 1 { print $1 }'); do losetup -d "$at"; done
    fi
    awk -v t="$T/" 'index($5, t) == 1 { print $5 }' /proc/self/mountinfo | tac | xargs -r -n1 umount -l
}

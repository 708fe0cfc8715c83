# shellcheck shell=bash
# Shared by all tests here; sourced, not run. It gives each test a private folder, and starts, stops and kills the
# daemon by its process number. Every test is a short script: arrange, act, assert.
#
#   start [option...]     starts `forebay run` on $BACKING and $CACHE and waits until it serves $URI
#   stop                  SIGTERM; the daemon must exit with 0
#   crash                 kill -9
#   fail TEXT, skip TEXT  end the test (skip exits with 77)
#   verifies NAME OPTION...   fio writes or reads, and compares
#   on_exit COMMAND       runs at the end, the newest first, whatever happens
#   eventually SECONDS COMMAND   waits until the command succeeds, for so long
#   logged PATTERN        the daemon that runs says it in its log, or does so within a while: clients may hear of a thing first
#   kill_jobs SIGNAL PID...   for on_exit: sends it to those that are children still; what was waited for may have given its number to another
#   unmount DEVICE FOLDER unmounts, and waits until nobody has the device: a test that makes a root of its own has every mount for a moment
#   free_port             a TCP port that no other test gets, and no connection of anybody

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
E2E=$ROOT/tests/e2e
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

eventually() { # SECONDS COMMAND...: true once the command is
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.1
    done
}

logged() {
    eventually 20 grep -Eq -- "$1" "$T/stderr" || fail "the log does not say '$1': $(tail -n 5 "$T/stderr")"
}

kill_jobs() {
    local signal=$1 pid
    shift
    for pid in "$@"; do
        if jobs -rp | grep -x "$pid" >/dev/null; then kill "-$signal" "$pid" && kill -CONT "$pid"; fi
    done
}

unmount() {
    umount "$2"
    # What is mounted somewhere cannot be had alone.
    eventually 20 python3 -c 'import os, sys; os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)' "$1" 2>/dev/null || fail "$1 is in use still"
}

# Below those that the kernel gives to whoever wants any.
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

need_fio() { # one that speaks NBD
    need fio
    fio --enghelp | grep -w nbd >/dev/null || skip "this fio has no nbd engine"
}

# verifies NAME OPTION...: fio, with a checksum in each block that it writes or reads. What it says is in $T/fio-NAME.out.
# False if it saw an error or wrong data.
verifies() {
    local name=$1
    shift
    (cd "$T" && exec fio --name="$name" --randrepeat=1 --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --output="$T/fio-$name.out" "$@") && ! grep -Eq '^(verify|crc32c): |err= *[1-9]' "$T/fio-$name.out"
}

# verifies_files NAME FOLDER SECONDS: as `verifies`, on a file system: random writes of random numbers that are read back and
# compared, with FLUSHes among them.
verifies_files() {
    verifies "$1" --directory="$2" --size=24M --rw=randwrite --bsrange=512-64k --blockalign=512 --ioengine=io_uring \
        --iodepth=16 --direct=1 --fsync=64 --verify_backlog=256 --time_based --runtime="$3" --randrepeat=0
}

[ -x "$FOREBAY" ] || fail "no binary at $FOREBAY: build it with cargo build --release, or set FOREBAY"

# make_backing SIZE: an empty backing store.
make_backing() {
    truncate -s "$1" "$BACKING"
}

random_file() { # PATH MIB
    head -c "$(($2 << 20))" /dev/urandom >"$1"
}

checksum() { sha256sum "$1" | cut -d' ' -f1; }

assert_same() { # FILE FILE WHAT
    cmp "$1" "$2" || fail "$3: the contents differ"
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

crash() {
    kill -9 "$DAEMON" || fail "the daemon had already ended"
    wait "$DAEMON" 2>/dev/null || true
    DAEMON=
}

assert_serving() {
    kill -0 "$DAEMON" 2>/dev/null || fail "the daemon is gone: $1"
    timeout 20 nbdinfo --size "$URI" >/dev/null || fail "the daemon does not serve any more: $1"
}

# refused CODES WORDS COMMAND...: the command must end by itself with one of the codes (a regular expression) and say
# all of the words (regular expressions, one a line, in any case) on stderr. It must not be killed by a signal.
refused() {
    local codes=$1 words=$2 code=0 word
    shift 2
    timeout --kill-after=5 60 "$@" >"$T/refused.out" 2>"$T/refused.err" || code=$?
    [[ $code =~ ^($codes)$ ]] || {
        cat "$T/refused.out" "$T/refused.err"
        fail "ended with code $code, expected $codes: $*"
    }
    while read -r word; do
        [ -z "$word" ] && continue
        grep -Eiq -- "$word" "$T/refused.err" || {
            cat "$T/refused.err"
            fail "the message does not say '$word'"
        }
    done <<<"$words"
    if grep -q 'panicked at' "$T/refused.err"; then
        cat "$T/refused.err"
        fail "that was a panic, not a message"
    fi
}

# The writer that knows what every sector must hold; see nbd_writer.py.
writer() { # write|verify|check-file [option...]
    local what=$1
    shift
    python3 "$E2E/nbd_writer.py" "$what" --socket "$SOCKET" --export vol --state "$T/state" "$@"
}

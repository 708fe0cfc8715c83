#!/usr/bin/env bash
# The device that is being replaced does not answer any more: what waits for it waits as without a copy, the job says so and can
# be cancelled, and a stop ends. One that was replaced and does not answer does not keep its pool from being opened. The device is
# a file of another forebay's FUSE export, which is stopped.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then skip "that needs root and /dev/fuse"; fi

mkdir "$T/slow"
truncate -s 120M "$T/behind.img"
truncate -s 32M "$T/vol.img"
# Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
"$FOREBAY" run --io psync --backing "file:$T/behind.img" --cache "$T/other.img:64MiB" --export "fuse:$T/slow/old.img" >"$T/other.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs TERM $OTHER; umount -l $T/slow"
eventually "$READY_SECONDS" test -e "$T/slow/old.img" || fail "the slow device is not there: $(cat "$T/other.out")"
config <<END
[pool.fast]
devices = ["$T/slow/old.img"]

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
sed -i "s|^state_dir = .*|state_dir = \"$T/state.d\"|" "$T/forebay.toml"
load() { # SECONDS SEED: writes in the background
    : >"$T/writer.out"
    writer write --seconds "$1" --seed "$2" >"$T/writer.out" 2>&1 &
    WRITER=$!
    eventually 20 grep -q '^connected' "$T/writer.out" || fail "the writer"
}
loaded() { wait "$WRITER" || { cat "$T/writer.out"; fail "the writer, $1"; }; }
names() { grep '^devices = ' "$T/forebay.toml"; }
job_says() { "$FOREBAY" jobs "$job" --json --admin "$ADMIN" | grep -E "$1" >/dev/null; }
begin() { # a copy of the slow device, which does not answer any more
    for _ in 1 2 3 4 5; do
        "$FOREBAY" pool replace fast --device "$T/new.img:124MiB" --background --admin "$ADMIN" >"$T/job" 2>&1 || { cat "$T/job"; fail "no job"; }
        job=$(grep -o 'j[0-9]\+' "$T/job" | head -n 1)
        kill -STOP "$OTHER"
        sleep 0.5 # what was answered before is noted by now
        if ! names | grep new.img >/dev/null; then return; fi
        # It was copied before: once more.
        kill -CONT "$OTHER"
        eventually 60 job_says '"completed"' || fail "the job does not end"
        ask pool replace fast --device "$T/slow/old.img" --force
    done
    fail "it is copied each time before it can be stopped"
}

serve
ask pool open fast --force # nobody needs the zeroes on it
say "it does not answer: the job says so, and is cancelled; clients go on when it answers"
load 4 1
begin
eventually 40 job_says 'old.img, which has not answered for [0-9]+ s' || fail "the job does not say what it waits for"
timeout 20 "$FOREBAY" jobs "$job" --cancel --admin "$ADMIN" >"$T/cancel.out" 2>&1 || true
eventually 20 job_says '"cancelled"' || fail "not cancelled"
if "$FOREBAY" check "$T/new.img" --state-dir "$T/none" >"$T/check.out" 2>&1; then fail "the new device is a cache"; fi
kill -CONT "$OTHER"
loaded "when the device answers again"
verify "after it was cancelled"
names | grep old.img >/dev/null || fail "the configuration: $(names)"

say "the same device can be taken then; and a stop ends while the old one does not answer"
load 30 2
begin
sleep 2
kill -TERM "$DAEMON"
eventually 90 grep -q 'stopped without closing the cache: .*old.img has not answered' "$T/stderr" || fail "the stop does not end"
# Where the server has taken an operation already the kernel does not let the process go before it is answered.
kill -CONT "$OTHER"
code=0
wait "$DAEMON" || code=$?
DAEMON=
[ "$code" = 1 ] || fail "the stop ended with $code"
wait "$WRITER" || true
serve
verify "after a stop while the device that is copied did not answer"
names | grep old.img >/dev/null || fail "the configuration: $(names)"

say "replaced, and not erased because it does not answer: the pool is opened all the same, and it is erased later"
ask pool replace fast --device "$T/new.img:124MiB"
unserve
note_replaced "$T/slow/old.img" "$T/new.img"
kill -STOP "$OTHER"
serve
verify "while the device that was replaced does not answer"
logged 'old.img was replaced, and does not answer; the next start erases it'
kill -CONT "$OTHER"
unserve
serve
[ ! -e "$T/state.d/replaced/fast.json" ] || fail "it stays on the list"
unserve

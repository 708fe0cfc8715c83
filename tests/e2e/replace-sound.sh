#!/usr/bin/env bash
# Sound cache devices are replaced, and any one of several is given up, under writes: with kill -9 at any moment of it, cancelled, and with
# new devices that are too small, in use, one of the pool's own, or that end or hang meanwhile. Whatever happens, every acknowledged write is there,
# and the pool lies on the devices that the configuration names. A device of a mirrored pool is replaced in the same
# way, and the pool is mirrored all the time. DELAYS=... for other moments (milliseconds after the command was given, or with a c before
# them, after the configuration was changed).
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

DELAYS=${DELAYS:-200 c0}
truncate -s 48M "$T/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/a.img", size = "40MiB" }]
segment_size = "256KiB"

[pool.other]
devices = [{ path = "$T/other.img", size = "32MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
sed -i "s|^state_dir = .*|state_dir = \"$T/state.d\"|" "$T/forebay.toml"
devices() { # the devices of the pool, as the daemon and the configuration name them
    ask pool show fast --json
    python3 - "$T/ask.out" "$T/forebay.toml" <<'END'
import json, os, sys, tomllib
shown = [os.path.basename(device["path"]) for device in json.load(open(sys.argv[1]))["devices"]]
entries = tomllib.load(open(sys.argv[2], "rb"))["pool"]["fast"]["devices"]
listed = [os.path.basename(entry if isinstance(entry, str) else entry["path"]) for entry in entries]
print(*(shown if shown == listed else ["shown:", *shown, "configured:", *listed]))
END
}
lies_on() { # NAMES WHEN
    local is
    is=$(devices)
    [ "$is" = "$1" ] || fail "the pool lies on $is, not on $1, $2"
}
no_cache() { # NAME WHEN: nobody takes it for a cache any more
    if "$FOREBAY" check "$T/$1" --state-dir "$T/none" >"$T/check.out" 2>&1; then fail "$1 is a cache still, $2"; fi
}
has_job_or_ended() { ! kill -0 "$JOB" 2>/dev/null || "$FOREBAY" pool show fast --json --admin "$ADMIN" | grep '"job": "' >/dev/null; }
is_configured() { grep "^devices = .*/$1\"" "$T/forebay.toml" >/dev/null; }
load() { # SECONDS SEED: writes in the background
    : >"$T/writer.out"
    writer write --seconds "$1" --seed "$2" >"$T/writer.out" 2>&1 &
    WRITER=$!
    eventually 30 grep -q '^connected' "$T/writer.out" || fail "the writer"
}
loaded() { wait "$WRITER" || { cat "$T/writer.out"; fail "the writer, $1"; }; }
replace=("$FOREBAY" pool replace fast --admin "$ADMIN")

serve
load 4 1
say "the only device, by a larger one; the first, the middle and the last of three; all under writes"
ask pool replace fast --device "$T/b.img:44MiB"
lies_on b.img "after the only one was replaced"
no_cache a.img "after it was replaced"
grep -q '"44MiB"' "$T/forebay.toml" || fail "the size is not in the configuration"
ask pool grow fast --device "$T/c.img:17MiB"
ask pool grow fast --device "$T/d.img:20MiB"
refused 2 'has 3 devices
--old PATH, one of .*b.img, .*c.img, .*d.img' "${replace[@]}" --device "$T/x.img:64MiB"
ask pool replace fast --old "$T/b.img" --device "$T/b2.img:44MiB"
ask pool replace fast --old "$T/c.img" --device "$T/c2.img:30MiB"
ask pool replace fast --old "$T/d.img" --device "$T/d2.img:24MiB"
lies_on "b2.img c2.img d2.img" "after each of three was replaced"
python3 - "$T/ask.out" <<'END' || fail "what the copies wrote: $(cat "$T/ask.out")"
import json, sys
for device in json.load(open(sys.argv[1]))["devices"]:
    flash = device["flash"]
    causes = flash["written_by_cause"]
    assert causes["device copy"] >= 17 << 20 and sum(causes.values()) == flash["written_bytes"], (device["path"], causes)
END
loaded "while devices were replaced"
for name in b c d; do no_cache $name.img "after it was replaced" && rm "$T/$name.img"; done
verify "after each device was replaced"
crash
serve
lies_on "b2.img c2.img d2.img" "after kill -9"
verify "after kill -9"

say "refused: too small, in use, the pool's own, not one of its devices; nothing was changed"
cp "$T/forebay.toml" "$T/before.toml"
refused 2 'too small: it needs 17MiB
only the last device' "${replace[@]}" --old "$T/c2.img" --device "$T/x.img:16MiB"
refused 2 'too small: it needs
make the pool smaller first' "${replace[@]}" --old "$T/d2.img" --device "$T/x.img:16MiB"
refused 1 'in use' "${replace[@]}" --old "$T/c2.img" --device "$T/other.img"
refused 2 'c2.img is a cache device of pool fast already' "${replace[@]}" --old "$T/c2.img" --device "$T/c2.img"
refused 2 'd2.img is a cache device of pool fast already' "${replace[@]}" --old "$T/c2.img" --device "$T/d2.img"
refused 2 'x.img is no cache device of pool fast' "${replace[@]}" --old "$T/x.img" --device "$T/y.img:64MiB"
if [ -e "$T/x.img" ] || [ -e "$T/y.img" ]; then fail "a file was left behind"; fi
cmp "$T/forebay.toml" "$T/before.toml" || fail "the configuration was changed"

say "any device of several is given up: the middle one, then the first"
load 3 2
refused 2 'b2.img cannot be given up: the last device takes its place' "$FOREBAY" pool shrink fast --device "$T/b2.img" --admin "$ADMIN"
ask pool replace fast --old "$T/d2.img" --device "$T/d3.img:48MiB"
ask pool shrink fast --device "$T/c2.img"
lies_on "b2.img d3.img" "after the middle one was given up"
ask pool shrink fast --device "$T/b2.img"
lies_on d3.img "after the first one was given up"
loaded "while devices were given up"
for name in b2 c2 d2; do no_cache $name.img "after it was given up" && rm "$T/$name.img"; done
verify "after devices were given up"
unserve
"$FOREBAY" check "$T/d3.img" --state-dir "$T/state.d" >"$T/check.out" 2>&1 || { cat "$T/check.out"; fail "check"; }
serve
verify "after a start"

say "cancelled, and with a new device that ends meanwhile: as before; the same device can be taken then"
ask pool grow fast --device "$T/e.img:120MiB" # a copy takes half a second
load 3 3
"${replace[@]}" --old "$T/e.img" --device "$T/f.img:120MiB" --background >"$T/job" 2>&1 || { cat "$T/job"; fail "the job"; }
job=$(grep -o 'j[0-9]\+' "$T/job" | head -n 1)
completed() { "$FOREBAY" jobs "$job" --json --admin "$ADMIN" | grep '"completed"' >/dev/null; }
is_told() { "$FOREBAY" pool show fast --admin "$ADMIN" >"$T/show.out" && grep -q "copied to *$T/f.img, .* left" "$T/show.out" || completed; }
eventually 20 is_told || fail "pool show does not tell what is copied: $(cat "$T/show.out")"
if "${replace[@]}" --old "$T/d3.img" --device "$T/g.img:120MiB" >"$T/second.out" 2>&1; then
    completed || fail "two changes at once"
    ask pool replace fast --old "$T/g.img" --device "$T/d3.img:48MiB" --force
else
    grep -Eq 'busy|under way|another change' "$T/second.out" || { cat "$T/second.out"; fail "it is refused for another reason"; }
fi
"$FOREBAY" jobs "$job" --cancel --admin "$ADMIN" >"$T/cancel.out" 2>&1 || true
eventually 30 sh -c "'$FOREBAY' jobs $job --json --admin '$ADMIN' | grep -Eq '\"(cancelled|completed)\"'" || fail "not cancelled"
loaded "while it was cancelled"
if ! completed; then # it may have been too late
    lies_on "d3.img e.img" "after it was cancelled"
    verify "after it was cancelled"
    for _ in 1 2 3 4 5; do
        "${replace[@]}" --old "$T/e.img" --device "$T/f.img" >"$T/job" 2>&1 &
        JOB=$!
        eventually 20 has_job_or_ended || fail "no job"
        kill -STOP "$DAEMON"
        if ! is_configured f.img; then break; fi
        # It was copied before: once more.
        kill -CONT "$DAEMON"
        wait "$JOB" || { cat "$T/job"; fail "the job"; }
        ask pool replace fast --old "$T/f.img" --device "$T/e.img"
    done
    truncate -s 1M "$T/f.img"
    kill -CONT "$DAEMON"
    code=0
    wait "$JOB" || code=$?
    if ! grep -q 'the new device .*f.img failed.*the pool is as it was' "$T/job" || [ "$code" != 1 ]; then
        cat "$T/job"
        fail "ended with $code"
    fi
    lies_on "d3.img e.img" "after the new device had ended"
    verify "after the new device had ended"
else
    ask pool replace fast --old "$T/f.img" --device "$T/e.img" --force
fi
rm "$T/f.img"

say "kill -9 at any moment: one of both devices, whole, and the same command works again"
seed=10
for after in $DELAYS; do
    for what in replace shrink; do
        seed=$((seed + 1))
        load 20 $seed
        cp "$T/forebay.toml" "$T/before.toml"
        if [ "$what" = replace ]; then
            names="d3.img f.img"
            "${replace[@]}" --old "$T/e.img" --device "$T/f.img:120MiB" >"$T/killed.out" 2>&1 &
        else
            names="e.img"
            "$FOREBAY" pool shrink fast --device "$T/d3.img" --admin "$ADMIN" >"$T/killed.out" 2>&1 &
        fi
        CHANGE=$!
        if [[ $after == c* ]]; then
            eventually 40 sh -c "! cmp -s '$T/forebay.toml' '$T/before.toml'" || { cat "$T/killed.out"; fail "no change"; }
            sleep "$(printf '0.%03d' "${after#c}")"
        else
            sleep "$(printf '0.%03d' "$after")"
        fi
        crash
        wait "$CHANGE" || true
        loaded "until kill -9"
        serve
        verify "after kill -9 $after ms into $what"
        is=$(devices)
        case "$is" in
            "d3.img e.img" | "$names") ;;
            *) fail "the pool lies on $is after kill -9 $after ms into $what: $(cat "$T/stderr")" ;;
        esac
        # And as it was, for the next one.
        if [ "$is" = "d3.img f.img" ]; then
            no_cache e.img "after kill -9"
            rm "$T/e.img"
            ask pool replace fast --old "$T/f.img" --device "$T/e.img:120MiB"
        elif [ "$is" = e.img ]; then
            no_cache d3.img "after kill -9"
            rm "$T/d3.img"
            ask pool grow fast --device "$T/d3.img:48MiB"
        fi
        rm -f "$T/f.img"
    done
    [ "$is" != e.img ] || break # the two have changed their places
done

say "everything dirty that fits: nothing is lost, and the backing store has all of it in the end"
last=$(devices)
last=${last##* }
load 3 99
ask pool replace fast --old "$T/$last" --device "$T/g.img:124MiB"
loaded "at the end"
ask volume detach vol
cp "$T/state" "$T/state.judge"
python3 "$E2E/nbd_writer.py" check-file --state "$T/state.judge" --file "$T/vol.img" >"$T/judge.out" ||
    { tail -n 5 "$T/judge.out"; fail "the backing store"; }
unserve

say "an encrypted cache: what is written meanwhile is on both devices as it is encrypted"
head -c 64 /dev/urandom >"$T/key"
chmod 600 "$T/key"
rm "$T/vol.img" "$T/state"
truncate -s 48M "$T/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/s.img", size = "120MiB" }]
encryption_key_file = "$T/key"

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
sed -i "s|^state_dir = .*|state_dir = \"$T/sealed.d\"|" "$T/forebay.toml"
serve
load 3 5
ask pool replace fast --device "$T/t.img:120MiB"
ask pool replace fast --device "$T/u.img:124MiB"
loaded "of an encrypted cache"
verify "after an encrypted cache was replaced"
crash
serve
lies_on u.img "after kill -9"
verify "after kill -9, encrypted"
unserve

say "a mirrored pool: either device, under writes; mirrored all the time; kill -9; and what fails meanwhile"
rm "$T/vol.img" "$T/state"
truncate -s 48M "$T/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/m.img", size = "64MiB" }, { path = "$T/n.img", size = "64MiB" }]
mirror = "on"

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
sed -i "s|^state_dir = .*|state_dir = \"$T/mirrored.d\"|" "$T/forebay.toml"
is_now() { # TEXT: pool show says so
    "$FOREBAY" pool show fast --admin "$ADMIN" >"$T/show.out" && grep -q "$1" "$T/show.out"
}
stands() { is_now "$1" || { cat "$T/show.out"; fail "not '$1' $2"; }; } # TEXT WHEN
begin_replace() { # OLD NEW: in the background
    "${replace[@]}" --old "$T/$1.img" --device "$T/$2.img:64MiB" >"$T/job" 2>&1 &
    JOB=$!
}
serve
load 4 7
refused 2 'has 2 devices
--old PATH, one of .*m.img, .*n.img' "${replace[@]}" --device "$T/o.img:64MiB"
refused 2 'too small: it needs' "${replace[@]}" --old "$T/m.img" --device "$T/o.img:60MiB"
begin_replace m o
while kill -0 "$JOB" 2>/dev/null; do stands 'ok, mirrored' "while a device was replaced"; done
wait "$JOB" || { cat "$T/job"; fail "the job"; }
ask pool replace fast --old "$T/n.img" --device "$T/p.img:70MiB"
stands 'ok, mirrored' "after both devices were replaced"
lies_on "o.img p.img" "after both devices were replaced"
loaded "of a mirrored cache"
for name in m n; do no_cache $name.img "after it was replaced" && rm "$T/$name.img"; done
verify "after both devices of a mirrored cache were replaced"

load 20 8
begin_replace o m
sleep 0.1
crash
wait "$JOB" || true
loaded "until kill -9"
serve
verify "after kill -9 while a device of a mirrored cache was replaced"
stands 'ok, mirrored' "after kill -9"
if [ "$(devices)" = "m.img p.img" ]; then
    no_cache o.img "after kill -9"
    rm "$T/o.img"
    ask pool replace fast --old "$T/m.img" --device "$T/o.img:64MiB"
fi
rm -f "$T/m.img"
lies_on "o.img p.img" "after kill -9"

cp --sparse=always "$T/p.img" "$T/older.img"
load 3 9
begin_replace o m
eventually 10 has_job_or_ended || true
truncate -s 1M "$T/o.img" # the one that is copied
if wait "$JOB"; then
    say "- it was copied before it failed, or replaced after it had failed"
else
    eventually 30 is_now DEGRADED || fail "not degraded"
fi
ask pool replace fast --old "$T/p.img" --device "$T/n.img:64MiB" # the one that may be left
loaded "while a device failed that was copied"
verify "on a copy of the one that is left"
if is_now DEGRADED; then ask pool replace fast --device "$T/m.img"; fi
stands 'ok, mirrored' "after a device had failed that was copied"
load 2 10
begin_replace m q
truncate -s 1M "$T/n.img" # the other one
wait "$JOB" || { cat "$T/job"; fail "a copy does not need the other device"; }
loaded "while the other device failed"
verify "after the other device had failed"
rm "$T/n.img"
ask pool replace fast --device "$T/n.img:64MiB"
stands 'ok, mirrored' "in the end"
unserve
mv "$T/older.img" "$T/n.img" # one that was replaced long ago, under the name of the one that counts
serve
stands DEGRADED "with a device that was replaced before"
verify "with a device that was replaced before"
unserve

say "a new device that does not answer: cancelled, and at a stop; clients go on, and the daemon ends"
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
    say "- not tried: that needs root and /dev/fuse"
    exit 0
fi
mkdir "$T/slow"
truncate -s 120M "$T/behind.img"
# Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
"$FOREBAY" run --io psync --backing "file:$T/behind.img" --cache "$T/other.img:64MiB" --export "fuse:$T/slow/new.img" >"$T/other.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs TERM $OTHER; umount -l $T/slow"
eventually "$READY_SECONDS" test -e "$T/slow/new.img" || fail "the slow device is not there: $(cat "$T/other.out")"
rm "$T/vol.img" "$T/state"
truncate -s 48M "$T/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/v.img", size = "100MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
sed -i "s|^state_dir = .*|state_dir = \"$T/slow.d\"|" "$T/forebay.toml"
begin_slow() { # a copy onto the slow device, which does not answer any more
    for _ in 1 2 3 4 5; do
        "${replace[@]}" --device "$T/slow/new.img" --force >"$T/job" 2>&1 &
        JOB=$!
        eventually 20 has_job_or_ended || { cat "$T/job"; fail "no job"; }
        kill -STOP "$OTHER"
        sleep 0.5 # what was answered before is noted by now
        if ! is_configured new.img; then return; fi
        # It was copied before: once more.
        kill -CONT "$OTHER"
        wait "$JOB" || { cat "$T/job"; fail "the job"; }
        ask pool replace fast --device "$T/v.img:100MiB"
    done
    fail "it is copied each time before it can be stopped"
}
serve
load 4 11
begin_slow
job=$("$FOREBAY" jobs --json --admin "$ADMIN" | grep -o '"j[0-9]\+"' | tail -n 1 | tr -d '"')
sleep 1
"$FOREBAY" jobs "$job" --cancel --admin "$ADMIN" >"$T/cancel.out" 2>&1 &
loaded "while the new device does not answer" # it ends only if its writes are answered
kill -CONT "$OTHER"
if wait "$JOB"; then fail "a device that does not answer has taken over"; fi
eventually 30 sh -c "'$FOREBAY' jobs '$job' --json --admin '$ADMIN' | grep -q '\"cancelled\"'" || { cat "$T/job"; fail "not cancelled"; }
lies_on v.img "after it was cancelled"
verify "after it was cancelled"
load 20 12
begin_slow
stop # its exit code is 0: the pool was closed
loaded "until the stop"
wait "$JOB" || true
kill -CONT "$OTHER"
serve
lies_on v.img "after a stop while the new device did not answer"
verify "after a stop while the new device did not answer"
unserve

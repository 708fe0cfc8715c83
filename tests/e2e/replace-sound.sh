#!/usr/bin/env bash
# Sound cache devices are replaced, and any one of several is given up, under writes: with kill -9 at any moment of it, cancelled, and with
# new devices that are too small, in use, one of the pool's own, or that end meanwhile. Whatever happens, every acknowledged write is there,
# and the pool lies on the devices that the configuration names. DELAYS=... for other moments (milliseconds after the command was given, or
# with a c before them, after the configuration was changed).
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
verify() { writer verify >"$T/verify.out" 2>&1 || { tail -n 5 "$T/verify.out"; fail "wrong data $1"; }; }
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
load() { # SECONDS SEED: writes in the background
    : >"$T/writer.out"
    writer write --seconds "$1" --seed "$2" >"$T/writer.out" 2>&1 &
    WRITER=$!
    eventually 10 grep -q '^connected' "$T/writer.out" || fail "the writer"
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
"$FOREBAY" pool show fast --admin "$ADMIN" >"$T/show.out"
grep -q "copied to *$T/f.img, .* left" "$T/show.out" || "$FOREBAY" jobs "$job" --json --admin "$ADMIN" | grep -q '"completed"' ||
    fail "pool show does not tell what is copied: $(cat "$T/show.out")"
refused 1 'busy|under way|another change' "${replace[@]}" --old "$T/d3.img" --device "$T/g.img:120MiB"
"$FOREBAY" jobs "$job" --cancel --admin "$ADMIN" >"$T/cancel.out" 2>&1 || true
eventually 10 sh -c "'$FOREBAY' jobs $job --json --admin '$ADMIN' | grep -Eq '\"(cancelled|completed)\"'" || fail "not cancelled"
loaded "while it was cancelled"
if ! "$FOREBAY" jobs "$job" --json --admin "$ADMIN" | grep -q '"completed"'; then # it may have been too late
    lies_on "d3.img e.img" "after it was cancelled"
    verify "after it was cancelled"
    "${replace[@]}" --old "$T/e.img" --device "$T/f.img" >"$T/job" 2>&1 &
    JOB=$!
    eventually 10 sh -c "'$FOREBAY' pool show fast --json --admin '$ADMIN' | grep -q '\"job\": \"'" || fail "no job"
    truncate -s 1M "$T/f.img"
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
            eventually 20 sh -c "! cmp -s '$T/forebay.toml' '$T/before.toml'" || { cat "$T/killed.out"; fail "no change"; }
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

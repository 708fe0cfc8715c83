#!/usr/bin/env bash
# Disk and cache move to another host (folder, configuration and state directory of its own), with dirty data: copied with their times the
# volume is there at once, copied without them it is refused until somebody says what is to become of what is dirty, and then nothing is
# missing. The old host forgets the pool. Then with an export and an import, which carry the settings, also with kill -9 in the middle of them
# (DELAYS=... for other moments, in seconds after the command was given, or `changed`: when the configuration has).
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

mkdir "$T/old" "$T/kept" "$T/copied"
truncate -s 48M "$T/old/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/old/flash.img", size = "32MiB" }, { path = "$T/old/more.img", size = "16MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$T/old/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
sed -i "s|^state_dir = .*|state_dir = \"$T/old/state\"|" "$T/forebay.toml"
serve
writer write --seconds 2 >"$T/writer.out" 2>&1 || fail "the writer: $(tail -n 5 "$T/writer.out")"
unserve
cp -p --sparse=always "$T/old/"*.img "$T/kept/"
sleep 0.1
cp --sparse=always "$T/old/"*.img "$T/copied/"
cp "$T/forebay.toml" "$T/old/forebay.toml"
cp "$T/state" "$T/old/writer"

new_host() { # NAME
    printf '[daemon]\nadmin_socket = "%s"\nstate_dir = "%s"\n' "$ADMIN" "$T/$1/state" >"$T/forebay.toml"
    cp "$T/old/writer" "$T/state"
    serve
    ask pool create fast --device "$T/$1/flash.img" --device "$T/$1/more.img"
}
attach=(volume attach vol --pool fast --export "nbd+unix:///vol?socket=$SOCKET" --backing)
drained() { # NAME: the disk has everything in the end
    ask volume detach vol
    python3 "$E2E/nbd_writer.py" check-file --state "$T/state" --file "$T/$1/vol.img" >"$T/judge.out" ||
        { tail -n 5 "$T/judge.out"; fail "the disk of $1"; }
    unserve
}

say "copied with their times"
new_host kept
ask "${attach[@]}" "file:$T/kept/vol.img"
verify "copied with their times"
ask events --after oldest --json
! grep -q 'backing.changed' "$T/ask.out" || fail "the disk was taken for a changed one"
unserve
serve
verify "after a start of the new host"
drained kept

say "copied without them: refused, and no dead end"
new_host copied
refused 1 'on_backing_change=keep-dirty|keep-dirty' "$FOREBAY" "${attach[@]}" "file:$T/copied/vol.img" --admin "$ADMIN"
ask "${attach[@]}" "file:$T/copied/vol.img" --set on_backing_change=keep-dirty
ask set vol on_backing_change=
verify "copied without their times"
drained copied

say "the old host has its devices no more, and forgets the pool"
cp "$T/old/forebay.toml" "$T/forebay.toml"
rm "$T/old/"*.img
serve
ask pool list
grep -q 'NOT OPEN' "$T/ask.out" || fail "the pool is open without its devices: $(cat "$T/ask.out")"
ask pool remove fast --force
ask pool list
! grep -q '^fast' "$T/ask.out" || fail "the pool is not forgotten"
unserve

# --- export and import: the settings come along

host() { # NAME: the daemon of that host, with what its configuration has already on stdin
    ADMIN=$T/admin.sock
    { printf '[daemon]\nadmin_socket = "%s"\nstate_dir = "%s"\n' "$ADMIN" "$T/$1/state" && cat; } >"$T/forebay.toml"
    serve
}
has_pool() { grep -q '^\[pool\.' "$T/forebay.toml"; }
to() { # NAME: disk and cache move there, with their times
    mkdir -p "$T/$1"
    mv "$T/$at/"*.img "$T/$1/"
    at=$1
}
import() { ask pool import --device "$T/$at/more.img" --device "$T/$at/flash.img" "$@"; }
settings() { # what the file says of the volume, but for names of this host
    python3 -c 'import json, sys, tomllib
volume = tomllib.load(open(sys.argv[1], "rb"))["volume"]["vol"]
del volume["pool"], volume["backing"]
print(json.dumps(volume, sort_keys=True))' "$T/forebay.toml"
}

say "an export: refused while it is used, and for a pool that is not there; then whole"
at=first
mkdir "$T/first"
rm "$T/state"
truncate -s 48M "$T/first/vol.img"
host first <<END
[pool.fast]
devices = [{ path = "$T/first/flash.img", size = "32MiB" }, { path = "$T/first/more.img", size = "16MiB" }]
segment_size = "256KiB"

[volume.vol]
pool = "fast"
backing = "file:$T/first/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
size = "40MiB"
idle_delay = "off"

[[volume.vol.rule]]
action = "bypass"
exe = "rsync"
END
settings >"$T/settings"
: >"$T/writer.out"
writer write --seconds 30 --until "$T/enough" --seed 7 >"$T/writer.out" 2>&1 &
WRITER=$!
eventually 30 grep -q '^connected' "$T/writer.out" || fail "the writer"
refused 1 'cannot export vol: it is in use: 1 NBD client
--force' "$FOREBAY" pool export fast --admin "$ADMIN"
refused 1 'no pool "fst"' "$FOREBAY" pool export fst --admin "$ADMIN"
touch "$T/enough"
wait "$WRITER" || fail "the writer: $(tail -n 5 "$T/writer.out")"
refused 1 'is in use' "$FOREBAY" pool import --device "$T/first/flash.img" --admin "$ADMIN"
ask pool export fast
! has_pool || fail "the configuration has the pool still"
refused 1 '' "$FOREBAY" pool show fast --admin "$ADMIN"
"$FOREBAY" inspect "$T/first/flash.img" "$T/first/more.img" >"$T/inspect.out" || fail "inspect"
grep -q "exported by $(uname -n)" "$T/inspect.out" || fail "inspect does not say that it is exported: $(cat "$T/inspect.out")"
unserve
serve
ask pool list --json
[ "$(cat "$T/ask.out")" = "[]" ] || fail "a start opens it: $(cat "$T/ask.out")"
unserve

say "an import: refused with a reason, tried dry, and then with members in any order, under another name"
to second
host second <<END
[pool.fast]
devices = [{ path = "$T/mine.img", size = "32MiB" }]
END
cp "$T/forebay.toml" "$T/before.toml"
pool_import() { refused "$1" "$2" "$FOREBAY" pool import --admin "$ADMIN" "${@:3}"; }
both=(--device "$T/second/more.img" --device "$T/second/flash.img")
pool_import 1 'device 2 \([0-9a-f]{16}\) is missing' --device "$T/second/flash.img" --pool quick
pool_import 1 'its first one is missing' --device "$T/second/more.img" --pool quick
pool_import 1 'there is a pool fast already
--pool NAME' "${both[@]}"
pool_import 1 'was not exported|is in use' --device "$T/mine.img"
pool_import '1|2' 'no volume vl
its volumes are vol' "${both[@]}" --pool quick --backing vl=/x
pool_import '1|2' 'cannot be taken for the backing store of volume vol' "${both[@]}" --pool quick --backing "vol=file:$T/second/more.img"
pool_import '1|2' 'the same device' "${both[@]}" --device "$T/second/flash.img" --pool quick
import --pool quick --dry-run
grep -q "would be imported" "$T/ask.out" || fail "dry: $(cat "$T/ask.out")"
cmp "$T/forebay.toml" "$T/before.toml" || fail "a dry run changes the configuration"
import --pool quick
grep -q "volume vol: file://$T/second/vol.img (was file://$T/first/vol.img), attached" "$T/ask.out" || fail "$(cat "$T/ask.out")"
verify "after the import"
settings | cmp - "$T/settings" || fail "other settings: $(settings)"
grep -q '^segment_size = "256KiB"' "$T/forebay.toml" || fail "not the settings of the pool: $(cat "$T/forebay.toml")"
ask events --after oldest --json
grep -q 'pool.imported' "$T/ask.out" && ! grep -q 'backing.changed' "$T/ask.out" || fail "$(cat "$T/ask.out")"
ask pool show quick --json
python3 -c 'import json, sys; pool = json.load(open(sys.argv[1])); sys.exit(not pool["dirty_bytes"] or not pool["cached_bytes"])' "$T/ask.out" ||
    fail "cold, or nothing is dirty: $(cat "$T/ask.out")"
pool_import 1 'is in use: it is a cache device of pool quick' "${both[@]}"
crash
cp "$T/forebay.toml" "$T/second.toml"
host third </dev/null
pool_import 1 'it is in use since it was exported
pool create NAME' "${both[@]}"
unserve
cp "$T/second.toml" "$T/forebay.toml"
serve
verify "after kill -9 of the host that imported it"

say "a backing store that is not there is waited for"
ask pool export quick
unserve
to third
mv "$T/third/vol.img" "$T/vol.kept"
host third </dev/null
refused 1 'is imported, but 1 of its volumes is not attached
to try again: forebay volume attach vol$' "$FOREBAY" pool import --admin "$ADMIN" \
    --device "$T/third/flash.img" --device "$T/third/more.img"
mkdir -p "$T/second"
mv "$T/vol.kept" "$T/second/vol.img"
eventually 20 sh -c "'$FOREBAY' volume show vol --admin '$ADMIN' | grep -q serving" || fail "not attached when it came"
verify "after the store came"

say "two daemons import it at once: one has it, and the other one is as before"
unserve
printf '[daemon]\nadmin_socket = "%s"\nstate_dir = "%s"\n' "$T/other.sock" "$T/other-state" >"$T/other.toml"
serve
FIRST=$DAEMON
"$FOREBAY" serve --config "$T/other.toml" >/dev/null 2>"$T/other.err" &
OTHER=$!
on_exit "kill_jobs KILL $OTHER"
eventually "$READY_SECONDS" grep -q 'forebay: serving' "$T/other.err" || fail "the other daemon"
for _ in 1 2 3; do
    ask pool export quick
    IMPORTS=()
    for socket in "$ADMIN" "$T/other.sock"; do
        timeout 60 "$FOREBAY" pool import --device "$T/third/flash.img" --device "$T/third/more.img" --admin "$socket" >>"$T/both.out" 2>&1 &
        IMPORTS+=($!)
    done
    for import in "${IMPORTS[@]}"; do wait "$import" || true; done
    [ "$(cat "$T/forebay.toml" "$T/other.toml" | grep -c '^\[pool.quick\]')" = 1 ] || fail "not one of them has it: $(cat "$T/both.out")"
    has_pool || { ADMIN=$T/other.sock ask pool export quick && import; }
done
kill "$OTHER"
wait "$OTHER" || fail "the other daemon ended with code $?"
DAEMON=$FIRST
verify "after imports at once"

say "killed at any instant: configured or exported, and nothing is lost"
unserve
mv "$T/second/vol.img" "$T/third/vol.img"
sed -i "s|$T/second/vol.img|$T/third/vol.img|" "$T/forebay.toml"
moment() { # WHEN COMMAND: after so many seconds, or when the command is true
    local tries=2000
    [ "$1" = changed ] || { sleep "$1" && return; }
    until eval "$2"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "the configuration does not change"
        sleep 0.01
    done
}
for delay in ${DELAYS:-0.05 0.2 changed}; do
    [ -S "$ADMIN" ] && rm -f "$ADMIN"
    serve
    writer write --seconds 0.3 --seed 9 >"$T/writer.out" 2>&1 || fail "the writer: $(tail -n 5 "$T/writer.out")"
    timeout 20 "$FOREBAY" pool export quick --admin "$ADMIN" >/dev/null 2>&1 &
    EXPORT=$!
    moment "$delay" '! has_pool'
    crash
    wait "$EXPORT" || true
    was=exported
    has_pool && was=configured
    serve
    if [ "$was" = exported ]; then
        timeout 20 "$FOREBAY" pool import --device "$T/third/more.img" --device "$T/third/flash.img" --admin "$ADMIN" >/dev/null 2>&1 &
        IMPORT=$!
        moment "$delay" has_pool
        crash
        wait "$IMPORT" || true
        has_pool || was="$was, and not imported"
        serve
        has_pool || import
    fi
    echo "  $delay: $was"
    eventually 20 sh -c "'$FOREBAY' volume show vol --admin '$ADMIN' | grep -q serving" || fail "not served after kill -9 ($delay)"
    verify "after kill -9 in an export or import ($delay)"
    unserve
done

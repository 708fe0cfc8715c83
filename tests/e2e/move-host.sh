#!/usr/bin/env bash
# Disk and cache move to another host (folder, configuration and state directory of its own), with dirty data: copied with their times the
# volume is there at once, copied without them it is refused until somebody says what is to become of what is dirty, and then nothing is
# missing. The old host forgets the pool.
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
verify() { writer verify >"$T/verify.out" 2>&1 || { tail -n 5 "$T/verify.out"; fail "wrong data, $1"; }; }
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

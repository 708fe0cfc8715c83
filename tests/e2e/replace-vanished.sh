#!/usr/bin/env bash
# A cache device was replaced, and vanished before it was erased. Another host, which knows nothing of the cache, finds it beside
# the other devices, in place of the new one: once the pool was started again it is not believed there. A second device, the
# first one, and a device of a mirrored pool.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

truncate -s 32M "$T/vol.img"
volume() {
    cat <<END
[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
}
write() { # SECONDS SEED
    writer write --seconds "$1" --seed "$2" >"$T/writer.out" 2>&1 || { cat "$T/writer.out"; fail "the writer"; }
}
replace() { # OLD NEW SIZE: a device, of which there is a copy in gone-OLD, as if it had vanished meanwhile
    cp --sparse=always "$T/$1.img" "$T/gone-$1.img"
    ask pool replace fast --old "$T/$1.img" --device "$T/$2.img:$3"
    rm "$T/$1.img"
}
vanished() { note_replaced "$T/$1.img" "$T/$2.img"; } # OLD NEW: the daemon knows no better, as if it had been killed just then
elsewhere() { # DEVICE...: what another host says of these devices, after a crash of this one
    local paths=() name
    for name in "$@"; do paths+=("$T/$name.img"); done
    "$FOREBAY" check "${paths[@]}" --state-dir "$T/none" >"$T/check.out" 2>&1
}
refused_elsewhere() { # TEXT DEVICE...
    local text=$1
    shift
    if elsewhere "$@" || ! grep -Eq "$text" "$T/check.out"; then cat "$T/check.out"; fail "$* are believed elsewhere"; fi
}
again() { # a start, with the list of what has vanished, and a crash
    serve
    eventually 20 grep -q '"left_behind": *true' "$T/state.d/replaced/fast.json" || fail "the list does not say that it was left behind: $(cat "$T/stderr")"
    writer verify >"$T/verify.out" 2>&1 || { tail -n 5 "$T/verify.out"; fail "wrong data"; }
    crash
}
settings() { # the state directory is another than the file that the writer keeps
    config
    sed -i "s|^state_dir = .*|state_dir = \"$T/state.d\"|" "$T/forebay.toml"
}

say "the second of three devices"
{
    printf '[pool.fast]\ndevices = [{ path = "%s/a.img", size = "24MiB" }]\nsegment_size = "256KiB"\n\n' "$T"
    volume
} | settings
serve
ask pool grow fast --device "$T/b.img:17MiB"
ask pool grow fast --device "$T/c.img:17MiB"
write 2 1
replace b b2 17MiB
write 2 2
crash
elsewhere a gone-b c || grep -q 'was taken out or replaced since' "$T/check.out" && fail "it is not believed before: $(cat "$T/check.out")"
vanished b b2
again
refused_elsewhere 'gone-b.img was a member of this cache, but it was taken out or replaced since' a gone-b c
elsewhere a b2 c || fail "the devices that count: $(cat "$T/check.out")"

say "the first one"
rm "$T/state.d/replaced/fast.json"
serve
replace a a2 24MiB
write 1 3
crash
vanished a a2
again
refused_elsewhere 'b2.img was a member of this cache, but it was taken out or replaced since' gone-a b2 c
elsewhere a2 b2 c || fail "the devices that count: $(cat "$T/check.out")"

say "a device of a mirrored pool"
rm -r "$T/state.d" "$T/state" "$T/vol.img" "$T"/[abc]*.img
truncate -s 32M "$T/vol.img"
{
    printf '[pool.fast]\ndevices = [{ path = "%s/m.img", size = "48MiB" }, { path = "%s/n.img", size = "48MiB" }]\nmirror = "on"\n\n' \
        "$T" "$T"
    volume
} | settings
serve
write 2 4
replace n o 48MiB
crash
vanished n o
again
generation() { "$FOREBAY" inspect "$T/$1.img" --json 2>/dev/null | grep -o '"generation": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -n 1; }
apart=$(($(generation m) - $(generation gone-n)))
[ "$apart" -gt 1 ] || fail "its superblock is behind by $apart only"

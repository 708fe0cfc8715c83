#!/usr/bin/env bash
# Devices that end before the end that they had: files that are cut, loop devices that shrink. What is missing answers with errors and is
# never read as zeroes, an alarm says which device it is, and when the bytes are back everything goes on and nothing false is cached. Of a
# cache device that is back within some seconds nothing is lost; of one that is not what can be read is rescued. A member of a
# mirrored cache is put out and can be replaced.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

random_file "$T/base" 64
cp "$T/base" "$T/disk.img"
cp "$T/base" "$T/loop.img"
truncate -s 64M "$T/flash2.img"
truncate -s 32M "$T/b.img"
LOOP='' FLASH='' MEMBER=''
if [ "$(id -u)" = 0 ] && losetup --find >/dev/null 2>&1; then
    LOOP=$(losetup --find --show "$T/loop.img") && on_exit "losetup --detach $LOOP" || LOOP=
    FLASH=$(losetup --find --show "$T/flash2.img") && on_exit "losetup --detach $FLASH" || FLASH=
    MEMBER=$(losetup --find --show "$T/b.img") && on_exit "losetup --detach $MEMBER" || MEMBER=
fi
[ -n "$LOOP$FLASH$MEMBER" ] || say "no loop devices here: files only"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[pool.safe]
devices = [{ path = "$T/a.img", size = "32MiB" }, { path = "${MEMBER:-$T/b.img}" }]
mirror = true

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
admission = "always"
END
volume() { # NAME POOL BACKING
    cat <<END

[volume.$1]
pool = "$2"
backing = "file:$3"
exports = ["nbd+unix:///$1?socket=$T/$1.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
admission = "always"
END
}
truncate -s 16M "$T/mirrored.img"
volume twin safe "$T/mirrored.img" >>"$T/forebay.toml"
[ -z "$LOOP" ] || volume loop fast "$LOOP" >>"$T/forebay.toml"
if [ -n "$FLASH" ]; then
    printf '\n[pool.lofi]\ndevices = [{ path = "%s" }]\n' "$FLASH" >>"$T/forebay.toml"
    truncate -s 64M "$T/lo.img"
    volume lo lofi "$T/lo.img" >>"$T/forebay.toml"
fi

cat >"$T/ends.py" <<'END'
"""VOLUME BASE COMMAND...: put OFFSET MIB writes blocks that name themselves; same compares all of the volume with BASE and what was put
(a file of its own keeps that); fails OFFSET wants an error, reads OFFSET LENGTH the right bytes; refused OFFSET: a write with FUA fails."""
import json, os, struct, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLAG_FUA, FLUSH, READ, WRITE, Client
folder, volume, what, *args = sys.argv[1:]
args = [int(arg) for arg in args]
client = Client(f"{folder}/{volume}.sock", volume, timeout=60)
notes = f"{folder}/{volume}.put"
put = json.load(open(notes)) if os.path.exists(notes) else []
BLOCK = 65536
block = lambda at: struct.pack("<Q", at + 1) * (BLOCK // 8)
base = open(f"{folder}/base", "rb")
def expected(at, length):
    for start, end in put:
        if start <= at < end:
            return block(at)[:length]
    if volume in ("twin", "lo"):
        return bytes(length)
    base.seek(at)
    return base.read(length)
if what == "put":
    start, end = args[0], args[0] + (args[1] << 20)
    for at in range(start, end, BLOCK):
        assert client.call(WRITE, at, BLOCK, block(at))[0] == 0, f"write at {at}"
    assert client.call(FLUSH)[0] == 0
    json.dump(put + [[start, end]], open(notes, "w"))
elif what == "fails":
    for length in (512, 4096, BLOCK):
        error, _ = client.call(READ, args[0], length)
        assert error, f"a read of {length} bytes at {args[0]}, which are not there, succeeded"
elif what == "refused":
    error, _ = client.call(WRITE, args[0], 4096, block(args[0])[:4096], flags=FLAG_FUA)
    assert error, "a write to a device that is too short succeeded"
elif what == "reads":
    error, data = client.call(READ, args[0], args[1])
    assert error == 0 and data == expected(args[0], args[1]), f"at {args[0]}: error {error}, {data[:16]!r}"
elif what == "lost":
    # Every sector of what was put is right, or listed and an error.
    lost = set()
    for file in os.listdir(f"{folder}/state/failed-caches"):
        if file.endswith(".json"):
            for one in json.load(open(f"{folder}/state/failed-caches/{file}"))["volumes"]:
                for part in one["lost"] if one["name"] == volume else []:
                    lost |= set(range(part["offset_bytes"], part["offset_bytes"] + part["bytes"], 512))
    right = 0
    for at in range(16 << 20, 41 << 20, 4096):
        error, data = client.call(READ, at, 4096)
        gone = any(sector in lost for sector in range(at, at + 4096, 512))
        assert bool(error) == gone, f"byte {at}: error {error}, listed {gone}"
        assert error or data == expected(at // BLOCK * BLOCK, BLOCK)[at % BLOCK:][:4096], f"byte {at}: wrong data"
        right += not error
    assert lost and right, f"{len(lost)} sectors lost, {right} blocks right: the test tests nothing"
else:
    for at in range(0, client.size, BLOCK):
        error, data = client.call(READ, at, BLOCK)
        assert error == 0 and data == expected(at, BLOCK), f"at {at}: error {error}, {data[:16]!r}"
END
export E2E
nbd() { timeout 100 python3 "$T/ends.py" "$T" "$@" || fail "$*"; }
raised() { # CONDITION
    ask alarms --json
    grep -q "\"$1\"" "$T/ask.out"
}
ended() { raised device.ended; }
not_ended() { ! raised device.ended; }
restore() { # COPY FILE: what was cut off, in place
    dd if="$1" of="$2" bs=1M skip=16 seek=16 conv=notrunc status=none
}
size_is() { [ "$(stat -c %s "$1")" = "$2" ] || fail "$1 has $(stat -c %s "$1") bytes: $3"; }

cut_backing() { # VOLUME FILE [LOOP]
    local file=$2 loop=${3:-}
    nbd "$1" put $((8 << 20)) 1
    nbd "$1" put $((40 << 20)) 1
    cp "$file" "$T/kept"
    truncate -s 16M "$file"
    [ -z "$loop" ] || losetup -c "$loop"
    nbd "$1" fails $((32 << 20))
    nbd "$1" fails $((16 << 20))
    nbd "$1" reads $((2 << 20)) 65536  # what is there
    nbd "$1" reads $((40 << 20)) 65536 # what the cache has
    eventually 20 ended || fail "no alarm"
    grep -q "has 16777216 bytes, and 67108864 are used of it" "$T/ask.out" || fail "the alarm does not say it: $(cat "$T/ask.out")"
    ask events --after oldest --kind device.failed --json
    grep -q '"operation":"read"' "$T/ask.out" || fail "the event does not name the operation: $(cat "$T/ask.out")"
    grep -q '"offset_bytes":33554432' "$T/ask.out" || fail "nor the offset: $(cat "$T/ask.out")"
    grep -q '"errno":6' "$T/ask.out" || fail "nor the error: $(cat "$T/ask.out")"
    grep -q "\"device\":\"${loop:-$file}\"" "$T/ask.out" || fail "nor the device: $(cat "$T/ask.out")"
    say "nothing is written to what is cut, or it would get a hole that reads as zeroes"
    timeout 4 "$FOREBAY" flush "$1" --admin "$ADMIN" >"$T/flush.out" 2>&1 && fail "flush: $(cat "$T/flush.out")"
    ask set "$1" mode=writethrough
    nbd "$1" refused $((50 << 20))
    ask set "$1" mode=writeback
    size_is "$file" $((16 << 20)) "it was made longer"
    refused 1 'less than the' "$FOREBAY" volume resize "$1" max --admin "$ADMIN"
    [ "$(grep -c "device.failed\|read of the backing store of $1" "$T/stderr")" -lt 8 ] || fail "the log is flooded: $(cat "$T/stderr")"
    say "the bytes are back: everything goes on, and nothing false is cached"
    restore "$T/kept" "$file"
    [ -z "$loop" ] || losetup -c "$loop"
    eventually 20 not_ended || fail "the alarm stays: $(cat "$T/ask.out")"
    nbd "$1" same
    ask flush "$1"
    nbd "$1" same
}
say "a backing file is cut from 64 to 16 MiB"
serve
# What is there and begins with zeroes is taken only when that is said.
[ -z "$MEMBER" ] || ask pool open safe --force
[ -z "$FLASH" ] || ask pool open lofi --force
cut_backing db "$T/disk.img"
ask pool scrub fast
if [ -n "$LOOP" ]; then
    say "a loop device shrinks"
    cut_backing loop "$T/loop.img" "$LOOP"
fi
unserve
ask_offline() { timeout 60 "$FOREBAY" "$@" >"$T/ask.out" 2>&1 || { cat "$T/ask.out"; fail "forebay $*"; }; }
ask_offline check "$T/flash.img"
serve
nbd db same
[ -z "$LOOP" ] || nbd loop same

cut_cache() { # VOLUME FILE [LOOP]
    local volume=$1 file=$2 loop=${3:-}
    nbd "$volume" put $((20 << 20)) 16
    cp "$file" "$T/kept"
    truncate -s 16M "$file"
    [ -z "$loop" ] || losetup -c "$loop"
    timeout 60 python3 "$T/ends.py" "$T" "$volume" same &
    READER=$!
    sleep 3
    kill -0 "$READER" 2>/dev/null || fail "the reader did not wait"
    restore "$T/kept" "$file"
    [ -z "$loop" ] || losetup -c "$loop"
    wait "$READER" || fail "the reader saw an error, or wrong data"
    nbd "$volume" put $((36 << 20)) 1
    nbd "$volume" same
    grep -q 'LOST\|cache device failed\|damaged' "$T/stderr" && fail "it was judged: $(cat "$T/stderr")"
    eventually 20 not_ended || fail "the alarm stays: $(cat "$T/ask.out")"
    crash
    serve
    nbd "$volume" same
}
say "the cache file is cut, and back after 3 s: a pause, and nothing else"
cut_cache db "$T/flash.img"
if [ -n "$FLASH" ]; then
    say "a loop device with a cache shrinks, and is back after 3 s"
    cut_cache lo "$T/flash2.img" "$FLASH"
fi

say "cut while nobody asks for anything: an alarm, and after some seconds it counts as failed"
cp "$T/flash.img" "$T/kept"
truncate -s 16M "$T/flash.img"
eventually 20 ended || fail "no alarm"
eventually 30 raised cache.failed || fail "it is not given up: $(cat "$T/stderr")"
rescued() { grep -q 'LOST: ' "$T/stderr"; }
eventually 30 rescued || fail "the rescue does not end: $(cat "$T/stderr")"
nbd db lost
say "the bytes come too late: what the record says stays true"
restore "$T/kept" "$T/flash.img"
nbd db lost
crash
serve
nbd db lost

say "a member of a mirrored cache is cut to 4 MiB"
nbd twin put 0 8
truncate -s 4M "$T/b.img"
[ -z "$MEMBER" ] || losetup -c "$MEMBER"
nbd twin put $((8 << 20)) 1
eventually 30 raised cache.degraded || fail "no alarm: $(cat "$T/stderr")"
nbd twin same
ask pool show safe
grep -q "${MEMBER:-b.img}.*out" "$T/ask.out" || fail "pool show does not say which: $(cat "$T/ask.out")"
ask pool replace safe --device "$T/c.img:32MiB"
whole() {
    ask pool show safe
    grep -q 'ok, mirrored' "$T/ask.out"
}
eventually 30 whole || fail "not whole: $(cat "$T/ask.out")"
eventually 20 not_ended || fail "the alarm stays: $(cat "$T/ask.out")"
say "and the other one while nobody asks for anything"
truncate -s 4M "$T/a.img"
eventually 30 raised cache.degraded || fail "no alarm: $(cat "$T/stderr")"
nbd twin same
crash

say "a cache that is shorter than it was is refused at the start"
rm -r "$T/state"
config <<END
[pool.cut]
devices = [{ path = "$T/cut.img", size = "64MiB" }]
END
truncate -s 64M "$T/other.img"
volume other cut "$T/other.img" >>"$T/forebay.toml"
serve
unserve
truncate -s 16M "$T/cut.img"
"$FOREBAY" serve --config "$T/forebay.toml" >"$T/stdout" 2>"$T/stderr" &
DAEMON=$!
on_exit "kill_jobs KILL $DAEMON"
said() { grep -q "cannot use the cache $T/cut.img" "$T/stderr" && grep -q 'its full length' "$T/stderr"; }
eventually 20 said || fail "no clear refusal: $(cat "$T/stderr")"

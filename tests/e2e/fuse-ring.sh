#!/usr/bin/env bash
# A volume's file through /dev/fuse and over io_uring: `volume show` says which, and what would enable the other. Either way fio
# reads back what it wrote, kill -9 under load loses nothing that was acknowledged, and the file grows, is refused to an upgrade, and
# is cut off while it is open.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/fuse-lib.sh"
need fio python3 flock
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"

SWITCH=/sys/module/fuse/parameters/enable_uring FILE=$T/vol/db.img
[ -e "$SWITCH" ] || skip "this kernel has no FUSE over io_uring (Linux 6.14, CONFIG_FUSE_IO_URING)"
[ -w "$SWITCH" ] || skip "no right to write $SWITCH"
exec 9<"$SWITCH"
flock -w 200 9 || skip "another test has the switch, which is the whole machine's"
FOUND=$(cat "$SWITCH")
on_exit 'echo "$FOUND" >"$SWITCH"'
on_exit abort_fuse

anew() { # an empty volume and cache, with these lines for the daemon
    rm -rf "$T/state" "$T/flash.img" "$T/disk.img"
    truncate -s 96M "$T/disk.img"
    config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "256MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["fuse:$FILE"]
idle_delay = "off"
END
}

# Writes blocks of 4 KiB at random until it fails, with the number of the write in each; says what was acknowledged.
cat >"$T/writer.py" <<'END'
import os, random, sys
fd, known = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), {}
memory = __import__("mmap").mmap(-1, 4096)
print("begun", flush=True)
try:
    for number in range(1, 1 << 30):
        block = random.randrange(4096)
        memory[:] = number.to_bytes(8, "little") * 512
        before = known.pop(block, None)
        known |= {block: (*before, number)} if before else {} # either may be there if this one fails
        os.pwrite(fd, memory, block * 4096)
        known[block] = (number,)
except OSError:
    pass
with open(sys.argv[2], "w") as out:
    for block, numbers in known.items():
        print(block, *numbers, file=out)
END
cat >"$T/reader.py" <<'END'
import sys
with open(sys.argv[1], "rb", 0) as file:
    for line in open(sys.argv[2]):
        block, *numbers = map(int, line.split())
        file.seek(block * 4096)
        found = file.read(4096)
        assert found in [number.to_bytes(8, "little") * 512 for number in numbers], f"block {block}"
END

shows() { # WAY WORDS: text and JSON say so
    ask volume show db
    grep -Eq "^ *file +over $1 \(.*$2" "$T/ask.out" || { cat "$T/ask.out"; fail "volume show does not say $1, $2"; }
    ask volume show db --json
    python3 - "$T/ask.out" "$1" "$2" "fuse://$FILE" <<'END' || fail "the JSON does not say so"
import json, re, sys
(file,) = json.load(open(sys.argv[1]))["files"]
assert file["over"] == sys.argv[2] and re.search(sys.argv[3], file["detail"]) and file["export"] == sys.argv[4], file
END
}

both_ways() { # SETTING WAY WORDS
    echo "$1" >"$SWITCH"
    anew
    serve
    [ "$2" = /dev/fuse ] || [ "$(cat "$FILE" | head -c 1 | wc -c)" = 1 ] # asked for something, the kernel has begun
    shows "$2" "$3"

    say "$2: fio reads back what it wrote, whole blocks and parts of them"
    for engine in psync io_uring; do
        verifies "$engine" --filename="$FILE" --size=64M --io_size=48M --rw=randrw --bsrange=512-1536k --blockalign=512 \
            --ioengine="$engine" --iodepth=16 --numjobs=1 --direct=1 --fsync=64 || fail "wrong data ($engine)"
    done

    say "$2: kill -9 under load, twice; what was acknowledged is there"
    for _ in 1 2; do
        python3 "$T/writer.py" "$FILE" "$T/known" >"$T/writer.out" &
        local writer=$!
        eventually 20 grep -q begun "$T/writer.out" || fail "the writer did not begin"
        sleep 0.7
        crash
        eventually 20 test -s "$T/known" || fail "the writer hangs after kill -9"
        wait "$writer" || fail "the writer"
        serve
        python3 "$T/reader.py" "$FILE" "$T/known" || fail "an acknowledged write is gone"
        rm "$T/known"
    done
    shows "$2" "$3"

    say "$2: the volume grows while its file is open; an upgrade is refused"
    exec 8<"$FILE"
    truncate -s 128M "$T/disk.img"
    ask volume resize db max
    grown() { [ "$(stat -c %s "$FILE")" = $((128 << 20)) ]; } # the kernel believes what it knows for a moment
    eventually 10 grown || fail "the file did not grow"
    refused 1 'fuse:' "$FOREBAY" upgrade --admin "$ADMIN"

    say "$2: a detach cuts the open file off, and the daemon ends"
    refused 1 'in use' "$FOREBAY" volume detach db --admin "$ADMIN"
    ask volume detach db --force
    if head -c 1 <&8 >/dev/null 2>&1; then fail "the file is served without its volume"; fi
    exec 8<&-
    ask volume attach db --backing "file:$T/disk.img" --pool fast --export "fuse:$FILE"
    shows "$2" "$3"
    exec 8<"$FILE"
    unserve
    if head -c 1 <&8 >/dev/null 2>&1; then fail "the file is served without a daemon"; fi
    exec 8<&-
}

both_ways N /dev/fuse "echo Y > $SWITCH"
both_ways Y io_uring "queues: $(getconf _NPROCESSORS_CONF), "

anew
say "switched off again, a mount goes on over io_uring, and a new one does not"
serve
cat "$FILE" >/dev/null
shows io_uring queues
echo N >"$SWITCH"
cat "$FILE" >/dev/null
shows io_uring queues
unserve
serve
shows /dev/fuse 'switched off in the kernel'
unserve

say "without io_uring in the daemon the reason is another"
echo Y >"$SWITCH"
sed -i 's/^devices/io = "psync"\ndevices/' "$T/forebay.toml"
serve
shows /dev/fuse 'with threads \(psync\)'
unserve

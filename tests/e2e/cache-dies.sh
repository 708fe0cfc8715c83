#!/usr/bin/env bash
# The cache device fails while it is used. Clients of a volume without dirty data see no error; of a write-back volume exactly
# what could not be read any more answers with errors, is listed, and heals when it is written. After a restart too.
#
# The device is a file on a tmpfs. It fails for writes when the tmpfs is full, and for everything when the file is cut
# and the tmpfs leaves no room to write it again.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need python3 mount

mkdir "$T/flash"
mount -t tmpfs -o size=40M tmpfs "$T/flash" || skip "no tmpfs may be mounted here"
on_exit "umount -l $T/flash"
truncate -s 64M "$T/through.img"
truncate -s 64M "$T/back.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash/cache.img", size = "96MiB" }]
cache_allocation = "sparse"

[volume.through]
pool = "fast"
backing = "file:$T/through.img"
exports = ["nbd+unix:///through?socket=$T/through.sock"]
mode = "writethrough"

[volume.back]
pool = "fast"
backing = "file:$T/back.img"
exports = ["nbd+unix:///back?socket=$T/back.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END

fio_on() { # VOLUME OPTION...
    verifies "$1" --ioengine=nbd --uri="nbd+unix:///$1?socket=$T/$1.sock" --iodepth=8 --bs=16k "${@:2}"
}
alarmed() {
    ask alarms --json
    grep -q cache.failed "$T/ask.out"
}
not_alarmed() { ! alarmed; }
rescued() { grep -q "the cache .* failed. Nothing is lost\|LOST: " "$T/stderr"; }
records() { find "$T/state/failed-caches" -name '*.json' 2>/dev/null; }

say "full: it takes no more writes, but can be read"
serve
fio_on back --rw=write --size=48M --do_verify=1 || { cat "$T/fio-back.out"; fail "the write-back volume saw an error"; }
eventually 40 alarmed || fail "no alarm"
eventually 30 rescued || fail "the rescue does not end: $(cat "$T/stderr")"
[ "$(records | wc -l)" = 1 ] || fail "no record: $(ls -R "$T/state")"
grep -q '"offset_bytes"' "$(records)" && fail "something is lost: $(cat "$(records)")"
fio_on through --rw=randrw --size=32M --do_verify=1 || { cat "$T/fio-through.out"; fail "the write-through volume saw an error"; }
say "after a restart the cache stays closed, and everything is there"
crash
serve
alarmed || fail "the alarm is gone after a restart"
fio_on back --rw=write --size=48M --verify_only=1 || { cat "$T/fio-back.out"; fail "wrong data after a restart"; }
unserve
say "where nobody has its record the cache itself says that it failed"
mv "$T/state" "$T/state.there"
serve
ask alarms --json
grep -q 'pool.failed' "$T/ask.out" || fail "the failed cache is opened"
logged 'failed, and its volumes went on without it'
crash
"$FOREBAY" check "$T/flash/cache.img" >"$T/check.out" 2>&1 && fail "check takes it for a sound one: $(cat "$T/check.out")"
grep -q 'state.*failed: its volumes went on without it' "$T/check.out" || fail "check does not say it: $(cat "$T/check.out")"
"$FOREBAY" inspect "$T/flash/cache.img" | grep 'state.*failed' >/dev/null || fail "inspect does not say it"
mkdir "$T/salvaged"
"$FOREBAY" salvage "$T/flash/cache.img" --state-dir "$T/state" --to "$T/salvaged" >"$T/salvage.out" 2>&1 || true
grep -q 'gave the cache up' "$T/salvage.out" || fail "salvage does not say it: $(cat "$T/salvage.out")"
rm -rf "$T/state"
mv "$T/state.there" "$T/state"

say "gone: it cannot be read either"
rm -r "$T/state" "$T/flash/cache.img"
mkdir "$T/state"
mount -t tmpfs -o size=4M tmpfs "$T/state"
on_exit "umount -l $T/state"
# This one never runs full.
sed -i 's/96MiB/32MiB/' "$T/forebay.toml"
serve
cat >"$T/losses.py" <<'END'
"""fill: 8 MiB of blocks that name themselves. judge: each sector is right, or listed as lost and an error. refused: a write over what
is lost fails. heal: writes what is lost, as soon as that may be."""
import json, os, struct, sys, time
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, READ, WRITE, Client
client, what, files = Client(sys.argv[1], "back"), sys.argv[2], sys.argv[3:]
SIZE = 8 << 20
sector = lambda at: struct.pack("<Q", at // 512 + 1) * 64
if what == "fill":
    for at in range(0, SIZE, 65536):
        data = b"".join(sector(at + part) for part in range(0, 65536, 512))
        assert client.call(WRITE, at, 65536, data)[0] == 0
    assert client.call(FLUSH)[0] == 0
    sys.exit()
lost = set()
for file in files:
    for volume in json.load(open(file))["volumes"]:
        for part in volume["lost"]:
            assert volume["name"] == "back", volume
            lost |= set(range(part["offset_bytes"], part["offset_bytes"] + part["bytes"], 512))
if what == "refused":
    at = min(lost)
    assert client.call(WRITE, at, 512, sector(at))[0], f"byte {at} is written"
    sys.exit()
until = time.monotonic() + 30
healed = set()
for at in range(0, SIZE, 512):
    error, data = client.call(READ, at, 512)
    gone = at in lost and at not in healed
    assert bool(error) == gone, f"byte {at}: error {error}, lost {gone}"
    assert error or data == sector(at), f"byte {at}: wrong data {data[:16]!r}"
    if what == "heal" and error:
        # Each write waits for the record: sector by sector at first, then in larger parts, so that it does not take minutes.
        parts = range(at, at + 512 if at < SIZE // 8 else (at // 65536 + 1) * 65536, 512)
        while client.call(WRITE, at, len(parts) * 512, b"".join(map(sector, parts)))[0]:
            assert not healed and time.monotonic() < until, f"byte {at} cannot be written"
            time.sleep(0.2)
        assert client.call(READ, at, 512) == (0, sector(at))
        healed |= set(parts)
if what == "heal":
    client.call(FLUSH)  # tells the clients of this start what was lost before
    assert client.call(FLUSH)[0] == 0
    assert lost and lost <= healed, "nothing was lost: the test tests nothing"
print(f"{len(lost)} of {SIZE // 512} sectors lost")
END
export E2E
losses() { python3 "$T/losses.py" "$T/back.sock" "$@" || fail "losses $1"; }
losses fill
fio_on through --rw=randrw --size=32M --do_verify=1 --time_based --runtime=12 >/dev/null 2>&1 &
FIO=$!
sleep 2
eventually 20 cut_off "$T/flash/cache.img" 1M || fail "the cache file cannot be taken away"
wait "$FIO" || { cat "$T/fio-through.out"; fail "the write-through volume saw an error"; }
grep -q 'err= *[1-9]' "$T/fio-through.out" && fail "an error under fio: $(cat "$T/fio-through.out")"
# Whoever asks first finds out; then everything is known within the time of the rescue.
python3 -c "
import sys; sys.path.insert(0, '$E2E')
from nbd_client import Client, FLUSH
client = Client('$T/back.sock', 'back')
first, second = client.call(FLUSH)[0], client.call(FLUSH)[0]
assert first and not second, f'a loss is told by one FLUSH: {first}, {second}'
" || fail "the FLUSH after a loss"
eventually 40 alarmed || fail "no alarm"
eventually 30 rescued || fail "the rescue does not end: $(cat "$T/stderr")"
losses judge "$(records)"
refused '[1-9]' 'cache of pool fast has failed' "$FOREBAY" upgrade --admin "$ADMIN"
ask volume show back
grep -qi 'lost' "$T/ask.out" || fail "volume show does not say what is lost: $(cat "$T/ask.out")"

say "killed and started again: the same ranges are lost"
crash
serve
losses judge "$(records)"

say "the record cannot be brought up to date: no write over what is lost is acknowledged"
head -c 8M /dev/zero >"$T/state/filler" 2>/dev/null || true
losses refused "$(records)"
logged 'is not up to date'
crash
serve
losses judge "$(records)" # what was refused is lost as before

say "there is room: they heal"
rm "$T/state/filler"
losses heal "$(records)"
losses judge "$(records)"
grep -q '"offset_bytes"' "$(records)" && fail "healed ranges are still listed: $(cat "$(records)")"

say "a new cache is put in: everything is as ever"
ask pool show fast
grep -q 'CACHE FAILED' "$T/ask.out" || fail "pool show does not say it: $(cat "$T/ask.out")"
ask pool replace fast --device "$T/new.img:64MiB"
ask pool show fast
grep -q 'CACHE FAILED' "$T/ask.out" && fail "still failed: $(cat "$T/ask.out")"
eventually 20 not_alarmed || fail "the alarm stays: $(cat "$T/ask.out")"
grep -q 'new.img' "$T/forebay.toml" || fail "the configuration does not know the new device"
losses judge
fio_on back --rw=randwrite --size=8M --offset=32M --do_verify=1 || fail "the write-back volume with the new cache"
ask volume show back
grep 'dirty' "$T/ask.out" | grep -v ' 0 B' >/dev/null || fail "nothing is cached: $(cat "$T/ask.out")"
unserve
serve
losses judge
unserve
say "nothing else was refused, nothing wrong was read"

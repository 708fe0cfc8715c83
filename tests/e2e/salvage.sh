#!/usr/bin/env bash
# forebay salvage: after kill -9 a copy of the backing store with the salvaged data holds everything that was acknowledged.
# With damaged superblocks too; a damaged block is listed as lost, and what a lost checkpoint leaves in doubt is kept apart.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

make_backing 48M
CACHE_SIZE=64MiB
# Where the daemon and salvage have their records.
export STATE_DIRECTORY=$T/records
mkdir "$STATE_DIRECTORY"
damage() { python3 "$E2E/cache_damage.py" "$@"; }
# judge IMAGE WHAT: it holds everything that was acknowledged. (The writer remembers what it finds, so it gets a copy.)
judge() {
    cp "$T/state" "$T/state.judge"
    python3 "$E2E/nbd_writer.py" check-file --state "$T/state.judge" --file "$1" >"$T/judge.out" || {
        tail -n 5 "$T/judge.out"
        fail "$2"
    }
}
salvage() { "$FOREBAY" salvage "$@" >"$T/salvage.out" 2>&1 || { cat "$T/salvage.out"; fail "forebay salvage $*"; }; }

say "kill -9 in the middle of writes"
start --set dirty_low_pct=80 --set dirty_high_pct=90
: >"$T/writer.out"
writer write --seconds 60 >"$T/writer.out" 2>&1 &
WRITER=$!
for ((tries = 0; tries < 600; tries++)); do
    if grep -q '^connected' "$T/writer.out" || ! kill -0 "$WRITER" 2>/dev/null; then break; fi
    sleep 0.05
done
sleep 2
refused 1 "in use" "$FOREBAY" salvage "$CACHE" --to "$T/busy"
crash
wait "$WRITER" || { cat "$T/writer.out"; fail "the writer"; }

say "a copy of the backing store, brought up to date: what was acknowledged is there, and the cache is as it was"
before=$(checksum "$CACHE")
cp "$BACKING" "$T/copy.img"
salvage "$CACHE" --volume vol --onto "file:$T/copy.img"
judge "$T/copy.img" "backing store and salvaged data are not what was acknowledged"
[ "$before" = "$(checksum "$CACHE")" ] || fail "salvage wrote to the cache"

say "a folder: the same data, by its list; nothing is replaced unless asked for"
salvage "$CACHE" --to "$T/out"
cp "$BACKING" "$T/copy2.img"
damage apply "$T/out/vol.dirty" "$T/out/vol.ranges" "$T/copy2.img"
assert_same "$T/copy.img" "$T/copy2.img" "the folder holds something else than was applied"
refused 1 "exists already
overwrite" "$FOREBAY" salvage "$CACHE" --to "$T/out"
salvage "$CACHE" --to "$T/out" --overwrite --json
python3 - "$T/salvage.out" <<'END' || fail "the JSON document"
import json, sys
done = json.load(open(sys.argv[1]))
assert done["complete"] and done["dirty_bytes"] > 0 and done["lost_bytes"] == done["uncertain_bytes"] == 0, done
END
refused 2 "required" "$FOREBAY" salvage "$CACHE"
refused 2 "no such volume" "$FOREBAY" salvage "$CACHE" --to "$T/none" --volume other

say "it says where it looked for a record; with nowhere to look nothing is written over a copy"
salvage "$CACHE" --to "$T/out" --overwrite
grep -q "no record .*$STATE_DIRECTORY;.*--config" "$T/salvage.out" || { cat "$T/salvage.out"; fail "where was the record sought?"; }
if [ ! -e /etc/forebay/forebay.toml ]; then
    STATE_DIRECTORY=$T/nowhere refused 1 "nowhere .does not exist
--config FILE" "$FOREBAY" salvage "$CACHE" --volume vol --onto "$T/copy2.img"
fi
assert_same "$T/copy.img" "$T/copy2.img" "something was written"
salvage "$CACHE" --volume vol --onto "$T/copy2.img" --state-dir "$T/nowhere"
assert_same "$T/copy.img" "$T/copy2.img" "a second time makes a difference"

say "both superblocks are overwritten: the layout is found by the checkpoints"
cp "$CACHE" "$T/headless.img"
damage superblocks "$T/headless.img"
refused 1 "salvage CACHE --to|never a cache" "$FOREBAY" check "$T/headless.img"
salvage "$T/headless.img" --to "$T/headless"
# The crash may have come when the next checkpoint was written and no superblock named it yet: without superblocks it counts, and
# what it calls clean the backing store has.
cp "$BACKING" "$T/copy3.img"
damage apply "$T/headless/vol.dirty" "$T/headless/vol.ranges" "$T/copy3.img"
assert_same "$T/copy.img" "$T/copy3.img" "other data without superblocks"

say "both copies of the checkpoint are damaged: everything is uncertain, and nothing is mixed"
eval "$("$FOREBAY" inspect "$CACHE" --json | python3 -c '
import json, sys
block = json.load(sys.stdin)["superblocks"][0]
print("SLOT_BLOCKS=%d GENERATION=%d" % (block["checkpoint_slot_blocks"], block["base_generation"] or block["checkpoint_generation"]))')"
cp "$CACHE" "$T/lost.img"
SLOT_BLOCKS=$SLOT_BLOCKS damage checkpoints "$T/lost.img" "$GENERATION"
refused 1 "salvage" "$FOREBAY" run --backing "file:$BACKING" --cache "$T/lost.img" --export "$URI"
hint=$(grep -m 1 -o 'forebay salvage CACHE --to FOLDER' "$T/refused.err") || { cat "$T/refused.err"; fail "no command in the hint"; }
say "the daemon says: $hint"
refused 1 "uncertain" "$FOREBAY" salvage "$T/lost.img" --to "$T/lost"
! compgen -G "$T/lost/*.dirty" >/dev/null || fail "uncertain data was called dirty"
python3 - "$T" <<'END' || fail "something dirty is not among what is uncertain"
import os, sys
folder = sys.argv[1]
# The volume's name is known only to checkpoints.
doubt = next(path for path in os.listdir(f"{folder}/lost") if path in ("vol.uncertain", "volume-0.uncertain"))
# What the newest checkpoint that was written calls dirty, whether a superblock names it or not.
right, doubtful = (open(f"{folder}/{name}", "rb").read() for name in ("headless/vol.dirty", f"lost/{doubt}"))
for line in open(f"{folder}/headless/vol.ranges"):
    if not line.startswith("#"):
        start, count, _ = line.split()
        start, end = int(start), int(start) + int(count)
        assert right[start:end] == doubtful[start:end], (start, end)
END

say "a damaged block is listed, and everything else is there"
start --set dirty_low_pct=80 --set dirty_high_pct=90
stop
salvage "$CACHE" --to "$T/whole"
cp "$CACHE" "$T/bad.img"
offset=$(damage sector "$T/bad.img" "$T/whole/vol.dirty" "$T/whole/vol.ranges")
refused 1 "lost" "$FOREBAY" salvage "$T/bad.img" --to "$T/bad"
lost=$(grep ' lost$' "$T/bad/vol.ranges")
[ "$(wc -l <<<"$lost")" = 1 ] || fail "one block was damaged: $lost"
read -r from bytes _ <<<"$lost"
[ "$from" -le "$offset" ] && [ "$bytes" -le 4096 ] && [ $((from + bytes)) -gt "$offset" ] || fail "$lost, not $offset"
python3 - "$T" "$from" "$bytes" <<'END' || fail "what is not lost differs"
import sys
folder, start, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
whole, bad = (open(f"{folder}/{name}/vol.dirty", "rb").read() for name in ("whole", "bad"))
assert whole[:start] == bad[:start] and whole[start + count :] == bad[start + count :]
assert bad[start : start + count] == bytes(count)
END

say "a pool of two devices, in any order; a missing one"
rm -f "$BACKING" "$T/state"
make_backing 48M
config <<END
[pool.fast]
devices = [{ path = "$T/one.img", size = "16MiB" }, { path = "$T/two.img", size = "48MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$BACKING"
exports = ["$URI"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END
serve
STATE=$T/state2
python3 "$E2E/nbd_writer.py" write --socket "$SOCKET" --export vol --state "$STATE" --seconds 2 ||
    fail "the writer on the pool"
refused 1 "in use" "$FOREBAY" check "$T/two.img" "$T/one.img"
crash
"$FOREBAY" check "$T/two.img" "$T/one.img" >"$T/check.out" || { cat "$T/check.out"; fail "check of two devices"; }
"$FOREBAY" inspect "$T/one.img" "$T/two.img" --segments >"$T/inspect.out" || fail "inspect of two devices"
refused 1 "member 1 is missing" "$FOREBAY" check "$T/one.img"
refused 1 "first one is missing" "$FOREBAY" inspect "$T/two.img"
refused 1 "neither the first device" "$FOREBAY" check "$T/one.img" "$T/two.img" "$BACKING"
cp "$T/two.img" "$T/two-again.img"
refused 1 "both say that they are member 1" "$FOREBAY" check "$T/one.img" "$T/two.img" "$T/two-again.img"
refused 1 "neither the first device" "$FOREBAY" check "$T/one.img" "$CACHE"
cp "$BACKING" "$T/copy4.img"
salvage "$T/two.img" "$T/one.img" --volume vol --onto "$T/copy4.img"
python3 "$E2E/nbd_writer.py" check-file --state "$STATE" --file "$T/copy4.img" || fail "the pool's data are not what was acknowledged"
refused 1 "lost|uncertain|missing" "$FOREBAY" salvage "$T/one.img" --to "$T/half"

say "a cache that a daemon gave up: only what the record lists, and none of it for certain"
sed -i "s|^state_dir.*|state_dir = \"$T/other\"|" "$T/forebay.toml"
salvage "$T/two.img" "$T/one.img" --to "$T/all" --json
python3 - "$T" <<'END' || fail "cannot make a record"
import json, os, sys
folder = sys.argv[1]
done = json.load(open(f"{folder}/salvage.out"))
assert done["given_up"] is None and done["records_sought_in"] == [f"{folder}/records"], done
volume = done["volumes"][0]
some = [{"offset_bytes": r["offset_bytes"], "bytes": 512, "written_unix_s": 1} for r in volume["ranges"][::2]]
uuid = done["uuid"].replace("-", "")
record = {
    "version": 1, "cache_uuid": uuid, "pool": "fast", "devices": [], "reason": "the test", "failed_unix_s": 1, "recorded_unix_s": 1,
    "volumes": [{"name": "vol", "uuid": "0" * 32, "number": volume["id"], "size_bytes": volume["size_bytes"], "lost": some}],
}
os.makedirs(f"{folder}/other/failed-caches")
json.dump(record, open(f"{folder}/other/failed-caches/{uuid}.json", "w"))
open(f"{folder}/expected", "w").writelines(f"{r['offset_bytes']} 512 uncertain\n" for r in some)
END
refused 1 "are uncertain" "$FOREBAY" salvage "$T/two.img" "$T/one.img" --to "$T/given-up" --config "$T/forebay.toml"
grep -q "a daemon gave this cache up" "$T/refused.out" || { cat "$T/refused.out"; fail "it does not say that the cache was given up"; }
[ ! -e "$T/given-up/vol.dirty" ] || fail "something is called dirty"
grep -v '^#' "$T/given-up/vol.ranges" | diff - "$T/expected" || fail "not what the record lists"
cp "$BACKING" "$T/copy5.img"
refused 1 "are uncertain" "$FOREBAY" salvage "$T/two.img" "$T/one.img" --volume vol --onto "$T/copy5.img" --state-dir "$T/other"
assert_same "$BACKING" "$T/copy5.img" "uncertain data was written"

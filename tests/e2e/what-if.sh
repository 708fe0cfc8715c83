#!/usr/bin/env bash
# The engine in virtual time beside the real one: the same trace to a real volume on the emulated disk and to `forebay what-if`. Hits
# agree within half a point; with LONG=1, on a longer trace, the mean latency is compared as well (within 15 %), which says something on
# an idle machine only. With TRACE (a file of 24-byte records), CACHE_SIZE and PACE it prints the comparison of that trace, and judges
# nothing. Then settings side by side, and what is refused.
. "$(dirname "$0")/lib.sh"
need python3

# The devices must not be slower than their models: in memory, if that is large enough.
if [ "$(df --output=avail -B1M /dev/shm 2>/dev/null | tail -1)" -gt 2048 ] 2>/dev/null; then
    BACKING=$(mktemp -d /dev/shm/forebay-e2e.XXXXXX)/backing.img
    CACHE=$(dirname "$BACKING")/cache.img
    on_exit "rm -rf '$(dirname "$BACKING")'"
fi
REQUESTS=${LONG:+12000}
REQUESTS=${REQUESTS:-1500}
make_trace() { # FILE REQUESTS: skewed, a third writes, 4 to 16 KiB, over 384 MiB
    python3 - "$@" <<'PY'
import random, struct, sys
rng = random.Random(7)
with open(sys.argv[1], "wb") as out:
    for at in range(int(sys.argv[2])):
        first = int(98000 * rng.random() ** 4) * 7919 % 98000
        out.write(struct.pack("<QQII", at * 12_000_000, first, rng.choice((1, 1, 2, 4)), rng.random() < 0.3))
PY
}
if [ -n "${TRACE:-}" ]; then cp "$TRACE" "$T/load.bin"; else make_trace "$T/load.bin" "$REQUESTS"; fi
VOLUME=$(python3 - "$T/load.bin" <<'PY'
import struct, sys
from pathlib import Path
print(max(384 << 20, *((first + blocks) * 4096 for _, first, blocks, _ in struct.iter_unpack("<QQII", Path(sys.argv[1]).read_bytes()))))
PY
)
truncate -s "$VOLUME" "$BACKING"
PACE=${PACE:---asap --depth 4}
# The cache device is memory, or a file that is in it.
FLASH="--flash-read 10us --flash-write 10us --flash-flush 20us"

say "the real engine: the requests to an emulated disk"
[ -n "${TRACE:-}" ] || CACHE_SIZE=${LONG:+48MiB}
[ -n "${TRACE:-}" ] || CACHE_SIZE=${CACHE_SIZE:-16MiB}
start --emulate hdd-7200 --admin "$T/admin.sock"
# shellcheck disable=SC2086
"$FOREBAY" trace replay "$T/load.bin" --to "$URI" --write-anything $PACE --json >"$T/replay.json" || fail "replay"
"$FOREBAY" stats vol --admin "$T/admin.sock" --format json >"$T/stats.json" || fail "stats"
stop

say "the same in virtual time"
# shellcheck disable=SC2086
"$FOREBAY" what-if --trace "$T/load.bin" --volume-size "$VOLUME" --cache "$CACHE_SIZE" $PACE $FLASH --json >"$T/what-if.json" || fail "what-if"
python3 - "$T" "${LONG:-}" "${TRACE:-}" <<'PY' || fail "see above"
import json, sys
from pathlib import Path
t, long, other = Path(sys.argv[1]), bool(sys.argv[2]), bool(sys.argv[3])
replay, what_if, stats = (json.loads((t / f"{name}.json").read_text()) for name in ("replay", "what-if", "stats"))
counters = stats if "read_hit_blocks" in stats else next(iter(stats["volumes"].values()))
model, = what_if["variants"]
hits = 100 * counters["read_hit_blocks"] / (counters["read_hit_blocks"] + counters["read_miss_blocks"])
print(f"hits: {hits:.2f} % real, {model['hit_pct']:.2f} % modelled")
means = [0.0, 0.0]
for operation in ("read", "write"):
    if operation not in replay["operations"]:
        continue
    real, virtual = replay["operations"][operation]["replayed"], model[operation]
    assert real["count"] == virtual["count"], (real, virtual)
    print(f"{operation}: mean {real['mean_ns'] / 1e6:.2f} ms real, {virtual['mean_ns'] / 1e6:.2f} ms modelled")
    means = [mean + one["mean_ns"] * one["count"] for mean, one in zip(means, (real, virtual))]
ratio = means[1] / means[0]
print(f"mean of all, modelled to real: {ratio:.3f}")
assert replay["errors"] == 0 and model["failed"] == 0
if other:
    sys.exit(0)
assert 5 < hits < 95, "there is something to compare"
assert abs(hits - model["hit_pct"]) <= 0.5, "hits differ by more than half a point"
assert not long or abs(ratio - 1) <= 0.15, "means differ by more than 15 %"
PY

[ -z "${TRACE:-}" ] || exit 0
say "settings side by side"
COLUMNS=80 "$FOREBAY" what-if --trace "$T/load.bin" --cache 60% --cache 16MiB --set reclaim_policy=lru,fifo >"$T/table" || fail "table"
[ "$(grep -c 'reclaim_policy=' "$T/table")" = 4 ] || fail "there are not four lines: $(cat "$T/table")"
python3 -c 'import sys; sys.exit(max(map(len, open(sys.argv[1], encoding="utf-8").read().splitlines())) > 80)' "$T/table" ||
    fail "too wide: $(cat "$T/table")"
"$FOREBAY" what-if --trace "$T/load.bin" --cache 16MiB --asap --json >"$T/first"
"$FOREBAY" what-if --trace "$T/load.bin" --cache 16MiB --asap --json >"$T/second"
assert_same "$T/first" "$T/second" "two tries of the same"

wrong() { # WORDS ARGUMENTS...
    local words=$1
    shift
    if "$FOREBAY" "$@" >"$T/wrong" 2>&1; then fail "$* was not refused"; fi
    grep -q -- "$words" "$T/wrong" || fail "$* says: $(cat "$T/wrong")"
}
: >"$T/empty.bin"
head -c 100 "$T/load.bin" >"$T/cut.bin"
wrong 'did you mean `reclaim_policy`' what-if --trace "$T/load.bin" --cache 16MiB --set reclaim_polcy=lru
wrong 'a cache of 4096 bytes' what-if --trace "$T/load.bin" --cache 4KiB
wrong 'has no requests' what-if --trace "$T/empty.bin" --cache 16MiB
wrong 'record 4: 4 bytes are no record' what-if --trace "$T/cut.bin" --cache 16MiB
wrong 'no trace in Forebay' what-if --trace "$T/load.bin" --from forebay --cache 16MiB
wrong 'the volume has 4096 bytes' what-if --trace "$T/load.bin" --volume-size 4KiB --cache 16MiB
wrong 'No such file' what-if --trace "$T/none.bin" --cache 16MiB
say "passed"

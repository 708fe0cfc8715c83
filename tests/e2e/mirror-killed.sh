#!/usr/bin/env bash
# A mirrored cache is killed under writes while a new device is being filled: each time the rebuild begins again by itself, and ends.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio

truncate -s 256M "$T/db.img"
config <<END
[pool.safe]
devices = [{ path = "$T/a.img", size = "64MiB" }, { path = "$T/b.img", size = "64MiB" }]
mirror = true
cache_allocation = "sparse"

[volume.db]
pool = "safe"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
END
whole() {
    ask pool show safe
    grep -q 'ok, mirrored' "$T/ask.out"
}
busy() {
    (
        cd "$T"
        exec fio --name=busy --ioengine=nbd --uri="nbd+unix:///db?socket=$T/db.sock" --iodepth=16 --rw=randwrite --bs=64k \
            --size=256M --time_based --runtime=60 --output="$T/fio.out"
    ) &
    FIO=$!
    on_exit "kill_jobs KILL $FIO"
}

serve
for round in 1 2 3 4 5 6; do
    busy
    sleep 1
    crash
    wait "$FIO" || true # it has lost its server
    # An empty device in the place of one of the two: it is filled from the start on.
    rm "$T/b.img"
    truncate -s 64M "$T/b.img"
    serve
    busy
    sleep "0.$((round * 15 % 9 + 1))"
    crash
    wait "$FIO" || true
    serve
    eventually 60 whole || fail "round $round: still degraded: $(cat "$T/ask.out" "$T/stderr")"
done
unserve

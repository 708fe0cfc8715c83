#!/usr/bin/env bash
# What wears the flash is counted by cause, a budget holds fills back and clients not, and disks are asked by a stand-in for
# smartctl that misbehaves.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need curl

mkdir "$T/bin"
cat >"$T/bin/smartctl" <<'END'
#!/bin/sh
exec sleep 600
END
chmod +x "$T/bin/smartctl"
export PATH="$T/bin:$PATH"

truncate -s 256M "$T/disk.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
endurance_rating = "600TB"

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
END
serve

load() { # MODE
    fio --name=load --ioengine=nbd --uri="nbd+unix:///db?socket=$T/nbd.sock" --iodepth=8 --rw="$1" --bs=16k --size=192M \
        --norandommap --randrepeat=0 --io_size=48M --output="$T/fio.out" || fail "$(cat "$T/fio.out")"
}
counter() { "$FOREBAY" stats db --admin "$ADMIN" --format json | python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }

say "a disk that hangs keeps nobody"
load randread
load randwrite
ask pool show fast
cat "$T/ask.out"
grep -q 'written .*client writes .*fills' "$T/ask.out" || fail "no causes"
grep -q 'lasts *not known before an hour' "$T/ask.out" || fail "it says how long after seconds"
"$FOREBAY" stats db --admin "$ADMIN" --format json >"$T/stats.json"
curl -s --unix-socket "$ADMIN" http://forebay/metrics >"$T/metrics" || fail "metrics"
python3 - "$T" <<'PY' || fail "see above"
import json, re, sys
from pathlib import Path
t = Path(sys.argv[1])
stats = json.loads((t / "stats.json").read_text())
causes = [name for name in stats if name.startswith("cache_written_") and name.endswith("_bytes") and name != "cache_written_bytes"]
assert len(causes) == 10, causes
total = sum(stats[name] for name in causes)
assert total == stats["cache_written_bytes"] > 64 << 20, (total, stats["cache_written_bytes"])
metrics = (t / "metrics").read_text()
found = re.findall(r'forebay_cache_device_written_bytes_total\{[^}]*cause="([^"]*)"[^}]*\} (\d+)', metrics)
assert len(found) == 10 and sum(int(value) for _, value in found) >= total, found
PY

say "what makes no sense is refused, and a budget holds fills back"
for wrong in endurance_budget=0 endurance_budget=lots endurance_rating=7y endurance_budget=0.3DWPD/5y; do
    "$FOREBAY" set --pool fast "$wrong" --admin "$ADMIN" >"$T/ask.out" 2>&1 && fail "$wrong is taken"
done
ask set --pool fast endurance_budget=7y
ask pool show fast
grep -q 'budget .* a day' "$T/ask.out" || fail "no budget: $(cat "$T/ask.out")"
ask set --pool fast endurance_budget=1MB
before=$(counter filled_blocks)
load randread
after=$(counter filled_blocks)
[ $((after - before)) -le 20 ] || fail "$((after - before)) blocks were filled with a budget of 1 MB a day"
[ "$(counter endurance_unfilled_blocks)" -gt 100 ] || fail "nothing was left out"
load randwrite
[ "$(counter failed_requests)" = 0 ] || fail "a client was refused"
ask set --pool fast endurance_budget=off
load randread
[ $(($(counter filled_blocks) - after)) -gt 100 ] || fail "without a budget nothing is filled"
unserve

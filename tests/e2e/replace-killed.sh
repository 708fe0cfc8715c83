#!/usr/bin/env bash
# kill -9 in the middle of `pool replace` of a failed cache: the next start serves the volume, without the cache as before or with the new
# one; what was lost is told until the operator has given it up; and the same command can be given again. The cache is a loop device whose
# file is cut. DELAYS=... for others.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3
export PYTHONPATH=$E2E

# Milliseconds after the command was given, or, with a c before them, after the configuration has named the new device.
DELAYS=${DELAYS:-15 c0 c20 c45 c90}
FEWER=${FEWER:-c0 c45 c90}

cat >"$T/drill.py" <<'END'
"""drill.py FOLDER FOREBAY DELAYS CASE: each delay is a pool of its own."""
import json, os, signal, subprocess, sys, time
import loop_device
from nbd_client import FLUSH, READ, WRITE, Client

root, forebay, delays, case = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4]
lossy, device = "lost" in case, "device" in case
BLOCKS = 512
block = lambda at: bytes([at * 7 % 255 + 1]) * 4096

def show(*args):
    asked = subprocess.run([forebay, *args, "--json", "--admin", admin], capture_output=True, text=True)
    return json.loads(asked.stdout) if asked.returncode == 0 else {"refused": asked.stderr}

def until(what, seconds=40):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, what
        time.sleep(0.05)

def serve():
    log = open(f"{here}/log", "a")
    at = os.path.getsize(f"{here}/log")
    daemon = subprocess.Popen([forebay, "serve", "--config", f"{here}/forebay.toml"], stdout=log, stderr=log)
    until(lambda: "forebay: serving" in open(f"{here}/log").read()[at:] or daemon.poll() is not None)
    assert daemon.poll() is None, open(f"{here}/log").read()
    return daemon

def blocks_right():
    client, wrong = Client(f"{here}/db.sock", "db"), 0
    for at in range(BLOCKS):
        error, data = client.call(READ, at * 4096, 4096)
        if not error and data != block(at):
            wrong += 1
    return BLOCKS - wrong

def check(pool, what):
    assert "refused" not in pool, f"{what}: not served: {pool}"
    lost, failed = pool["lost_bytes"], pool["cache_failed"]
    alarms = [alarm["condition"] for alarm in show("alarms")["alarms"]]
    assert ("cache.failed" in alarms) == failed, (what, alarms)
    assert "pool.failed" not in alarms and "volume.failed" not in alarms, (what, alarms)
    right = blocks_right()
    if not lossy:
        assert lost == 0 and right == BLOCKS, f"{what}: {lost} lost, {right} right"
    elif lost:
        assert failed and "block.lost" in alarms and right == BLOCKS, f"{what}: {lost} lost, {right} right, {alarms}"
    return "without" if failed else "new"

for delay in delays:
    here = f"{root}/{case}-{delay}"
    os.mkdir(here)
    admin = f"{here}/admin"
    for name, size in ("db.img", 16), ("c.img", 32):
        with open(f"{here}/{name}", "w") as file:
            file.truncate(size << 20)
    cache, fresh, daemon = loop_device.LoopDevice(f"{here}/c.img"), None, None
    new = [f"{here}/new.img:32MiB"]
    if device:
        with open(f"{here}/new.raw", "w") as file:
            file.truncate(32 << 20)
        fresh = loop_device.LoopDevice(f"{here}/new.raw")
        new = [fresh.path, "--force"]
    try:
        with open(f"{here}/forebay.toml", "w") as file:
            file.write(f"""[daemon]
admin_socket = "{admin}"
state_dir = "{here}/state"
[pool.fast]
devices = ["{cache.path}"]
[volume.db]
pool = "fast"
backing = "file:{here}/db.img"
exports = ["nbd+unix:///db?socket={here}/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
""")
        daemon = serve()
        subprocess.run([forebay, "pool", "open", "fast", "--force", "--admin", admin], capture_output=True, check=True)
        client = Client(f"{here}/db.sock", "db")
        for at in range(BLOCKS):
            assert client.call(WRITE, at * 4096, 4096, block(at))[0] == 0
        assert client.call(FLUSH)[0] == 0
        if not lossy:
            subprocess.run([forebay, "flush", "db", "--admin", admin], capture_output=True, check=True)
        cache.end_at(4096)
        until(lambda: (pool := show("pool", "show", "fast")).get("cache_failed") and not pool["dirty_bytes"])
        assert (show("pool", "show", "fast")["lost_bytes"] > 0) == lossy
        command = [forebay, "pool", "replace", "fast", "--device", *new, "--admin", admin] + ["--discard-lost"] * lossy
        asked = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if delay.startswith("c"):
            while new[0].split(":")[0] not in open(f"{here}/forebay.toml").read():
                assert asked.poll() in (None, 0), asked.returncode
        time.sleep(int(delay.lstrip("c")) / 1000)
        daemon.kill()
        daemon.wait()
        done = asked.wait() == 0
        config = "new" if new[0].split(":")[0] in open(f"{here}/forebay.toml").read() else "old"
        daemon = serve()
        state = check(show("pool", "show", "fast"), f"{case}, killed after {delay}, the configuration is {config}")
        assert not done or state == "new", "it was replaced"
        daemon.kill()  # and once more, before anything else is asked
        daemon.wait()
        daemon = serve()
        again = check(show("pool", "show", "fast"), f"{case}, after {delay}, and another start")
        assert again == state, (state, again)
        if state == "without":
            replaced = subprocess.run(command, capture_output=True, text=True)
            assert replaced.returncode == 0, f"{case}, after {delay}: {replaced.stderr}"
        pool = show("pool", "show", "fast")
        assert check(pool, "replaced") == "new" and pool["lost_bytes"] == 0, pool
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
        daemon = serve()
        assert check(show("pool", "show", "fast"), "started again") == "new"
        print(f"{case}: killed after {delay}: configuration {config}, served {state}", flush=True)
    except BaseException:
        print(open(f"{here}/log").read()[-3000:])
        raise
    finally:
        if daemon and daemon.poll() is None:
            daemon.kill()
            daemon.wait()
        for loop in cache, fresh:
            loop and loop.release()
END
python3 -c "
import loop_device, sys
open('$T/try.img', 'w').truncate(1 << 20)
try: loop_device.LoopDevice('$T/try.img').release()
except OSError as error: sys.exit(str(error))
" 2>"$T/try.out" || skip "no loop devices: $(cat "$T/try.out")"
drill() { # CASE DELAYS
    say "$1"
    python3 "$T/drill.py" "$T" "$FOREBAY" "$2" "$1" || fail "$1"
}
drill whole "$DELAYS"
drill lost "$FEWER"
drill lost-device "$FEWER"

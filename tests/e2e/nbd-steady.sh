#!/usr/bin/env bash
# Clients that have much under way and take their answers slowly, but all the time, want more memory than there is: none of them is
# disconnected, each gets what it has asked for, and others are served beside them.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

truncate -s 256M "$T/disk.img"
config <<END2
[pool.fast]
devices = [{ path = "$T/flash.img", size = "128MiB" }]
buffer_memory = "192MiB"

[volume.db]
pool = "fast"
backing = "file:$T/disk.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
END2
serve
cat >"$T/steady.py" <<'END2'
import os, sys, threading, time
sys.path.insert(0, os.environ["E2E"])
from nbd_client import READ, WRITE, Client, Disconnected
CLIENTS, DEPTH, LENGTH, RATE, SECONDS = 16, 32, 1 << 20, 2 << 20, 25
path, began = sys.argv[1], time.monotonic()
until, bad, taken = began + SECONDS, [], [0] * CLIENTS

def steadily(number):
    """Takes RATE bytes in a second, 64 KiB at once, and keeps DEPTH requests under way."""
    try:
        client = Client(path, "db", timeout=60)
        for cookie in range(DEPTH):
            client.request(READ, cookie, cookie << 20, LENGTH)
        start, got = time.monotonic(), 0
        while time.monotonic() < until:
            error, cookie = client.reply()
            assert error == 0, error
            for _ in range(LENGTH >> 16):
                client.receive(1 << 16)
                got += 1 << 16
                time.sleep(max(0, start + got / RATE - time.monotonic()))
            client.request(READ, cookie, cookie << 20, LENGTH)
        taken[number] = got
    except (Disconnected, AssertionError, SystemExit) as error:
        bad.append(f"client {number} after {time.monotonic() - began:.1f} s: {error!r}")

def beside(length, waits):
    client = Client(path, "db", timeout=60)
    while time.monotonic() < until:
        for kind, data in ((WRITE, bytes(length)), (READ, b"")):
            asked = time.monotonic()
            assert client.call(kind, 0, length, data)[0] == 0
            waits.append(time.monotonic() - asked)
        time.sleep(0.05)

threads = [threading.Thread(target=steadily, args=(number,)) for number in range(CLIENTS)]
lengths = {length: [] for length in (4096, 128 << 10, 1 << 20)}
threads += [threading.Thread(target=beside, args=item) for item in lengths.items()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for length, waits in lengths.items():
    print(f"beside, {length >> 10} KiB: {len(waits)} times, longest {max(waits, default=99):.2f} s")
    # Not as long as they are there. (A busy machine may stop everybody for some seconds.)
    if max(waits, default=99) > SECONDS / 2:
        bad.append(f"a client beside them that wrote and read {length} bytes waited {max(waits, default=99):.1f} s")
print(f"taken: {sum(taken) >> 20} MiB, by the slowest {min(taken) >> 20}")
if min(taken) < RATE * SECONDS / 8:
    bad.append("one of them got too little")
sys.exit("\n".join(bad) or 0)
END2
export E2E
say "16 clients that take their answers all the time"
timeout 200 python3 "$T/steady.py" "$T/nbd.sock" || fail "clients that take answers all the time"
if grep -q 'takes no answers' "$T/stderr"; then fail "$(grep 'takes no answers' "$T/stderr")"; fi
unserve

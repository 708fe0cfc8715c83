"""Writes stamped sectors at a queue depth and knows afterwards what every sector may hold.

    python -m harness.oracle write      --socket S --export E --state F [--seconds N] [--until PATH] [--depth N]
                             [--seed N] [--sectors-max N]
    python -m harness.oracle verify     --socket S --export E --state F
    python -m harness.oracle check-file --state F --file PATH

Every write gives its sectors a stamp that was never used before. No two requests in flight touch the same sector, so
after a crash a sector holds the last stamp that was acknowledged, or the one that was under way: nothing else. What
`verify` finds is then the only thing that the sector may hold: a write that was lost cannot come back later.

`write` ends when its time is over or the file --until is there (code 0), or when the server is gone (code 0 as well:
that is what the tests do to it). The state lives in a file, because the daemon is killed and not this process.
`check-file` compares a raw image, such as a backing store after everything was drained to it."""

import argparse
import array
import random
import struct
import sys
import threading
import time
from pathlib import Path

from .nbd import FLAG_FUA, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES, Client, Disconnected

SECTOR = 512
NOTHING = 2**64 - 1  # no write under way
ZEROES = 0  # the stamp of a sector that reads as zeroes


def content(stamp, sector):
    return bytes(SECTOR) if stamp == ZEROES else struct.pack("<QQ", stamp, sector) * (SECTOR // 16)


class State:
    """For every sector the stamp that was acknowledged last, and the one that is under way."""

    def __init__(self, path, sectors):
        self.path = Path(path)
        self.next_stamp = 1
        self.acknowledged = array.array("Q", bytes(8 * sectors))
        self.pending = array.array("Q", [NOTHING]) * sectors
        if self.path.exists():
            with self.path.open("rb") as file:
                self.next_stamp, count = struct.unpack("<QQ", file.read(16))
                assert count == sectors, f"the volume has {sectors} sectors, it had {count}"
                self.acknowledged = array.array("Q", file.read(8 * sectors))
                self.pending = array.array("Q", file.read(8 * sectors))

    def save(self):
        new = self.path.with_name(self.path.name + ".new")
        with new.open("wb") as file:
            file.write(struct.pack("<QQ", self.next_stamp, len(self.pending)))
            file.write(self.acknowledged.tobytes())
            file.write(self.pending.tobytes())
        new.replace(self.path)

    def mismatches(self, first, data):
        """Compares what was read with what may be there; remembers what is there."""
        for index in range(len(data) // SECTOR):
            sector = first + index
            found = data[index * SECTOR : (index + 1) * SECTOR]
            allowed = [self.acknowledged[sector]]
            if self.pending[sector] != NOTHING:
                allowed.append(self.pending[sector])
            for stamp in allowed:
                if found == content(stamp, sector):
                    self.acknowledged[sector] = stamp
                    self.pending[sector] = NOTHING
                    break
            else:
                yield sector, allowed, found


def describe(sector, allowed, found):
    stamp, place = struct.unpack("<QQ", found[:16])
    whole = "" if found == content(stamp, place) else ", torn inside the sector"
    names = " or ".join("zeroes" if stamp == ZEROES else f"stamp {stamp}" for stamp in allowed)
    return f"sector {sector}: expected {names}; found stamp {stamp} of sector {place}{whole}"


def report(mismatches):
    count = 0
    for count, mismatch in enumerate(mismatches, 1):
        if count <= 10:
            print(describe(*mismatch))
    if count:
        print(f"{count} sectors do not hold what was acknowledged")
    return count


class Writer:
    """One thread sends, another takes the replies; `inflight` is between them."""

    def __init__(self, client, state, options):
        self.client, self.state, self.options = client, state, options
        self.random = random.Random(options.seed)
        self.lock = threading.Condition()
        self.inflight = {}  # cookie -> (kind, first sector, sectors, stamp)
        self.touched = set()  # sectors of requests in flight
        self.counts = {"writes": 0, "zeroes": 0, "reads": 0, "flushes": 0}
        self.problem = None  # why the run has failed
        self.gone = False  # the server is gone
        self.ending = False  # somebody else wants it to end, once everything is answered

    def run(self):
        receiver = threading.Thread(target=self.guard, args=(self.receive_all,))
        receiver.start()
        self.guard(self.send_all)
        with self.lock:
            self.lock.wait_for(lambda: not self.inflight or self.gone or self.problem, timeout=120)
            if self.inflight and not self.gone and not self.problem:
                self.problem = "requests were never answered"
        self.client.socket.close() if self.gone else self.client.socket.shutdown(2)
        receiver.join()

    def guard(self, work):
        try:
            work()
        except Disconnected:
            with self.lock:
                self.gone = True
                self.lock.notify_all()
        except BaseException as error:  # whatever fails in a thread must end the run
            with self.lock:
                self.problem = self.problem or f"{type(error).__name__}: {error}"
                self.lock.notify_all()

    def send_all(self):
        end = time.monotonic() + self.options.seconds
        cookie = 0
        until = self.options.until
        while time.monotonic() < end and not self.ending and not (until and cookie % 16 == 0 and until.exists()):
            with self.lock:
                self.lock.wait_for(
                    lambda: len(self.inflight) < self.options.depth or self.gone or self.problem, timeout=120
                )
                if self.gone or self.problem:
                    return
                assert len(self.inflight) < self.options.depth, "no reply for 120 s"
                chosen = self.choose()
                if chosen is None:
                    self.lock.wait(0.01)
                    continue
                kind, first, count, stamp = chosen
                cookie += 1
                self.inflight[cookie] = chosen
                self.touched.update(range(first, first + count))
                if stamp is not None:
                    for sector in range(first, first + count):
                        self.state.pending[sector] = stamp
            data = b""
            if kind == WRITE:
                data = b"".join(content(stamp, sector) for sector in range(first, first + count))
            flags = FLAG_FUA if kind == WRITE and self.random.random() < 0.05 else 0
            self.client.request(kind, cookie, first * SECTOR, count * SECTOR, data, flags)

    def choose(self):
        """What to do next: (kind, first sector, sectors, stamp to be written)."""
        dice = self.random.random()
        if dice < 0.02:
            return FLUSH, 0, 0, None
        most = self.options.sectors_max
        # Mostly small, mostly aligned, at times neither; every third one in a hot tenth of the volume.
        count = self.random.choice([1, 8, 8, 8, 8, self.random.randint(1, most), most])
        area = len(self.state.pending) // (10 if self.random.random() < 0.33 else 1)
        first = self.random.randrange(max(1, area - count))
        if self.random.random() < 0.8:
            first -= first % 8
        if not self.touched.isdisjoint(range(first, first + count)):
            return None
        if dice < 0.10:
            return READ, first, count, None
        if dice < 0.13:
            return WRITE_ZEROES, first, count, ZEROES
        stamp = self.state.next_stamp
        self.state.next_stamp += 1
        return WRITE, first, count, stamp

    def receive_all(self):
        while True:
            error, cookie = self.client.reply()
            with self.lock:
                kind, first, count, stamp = self.inflight[cookie]
            assert error == 0, f"request {kind} of sectors {first}+{count} failed with error {error}"
            data = self.client.receive(count * SECTOR) if kind == READ else b""
            with self.lock:
                if stamp is not None:
                    for sector in range(first, first + count):
                        self.state.acknowledged[sector] = stamp
                        self.state.pending[sector] = NOTHING
                wrong = list(self.state.mismatches(first, data))
                assert not wrong, "read while writing: " + describe(*wrong[0])
                name = {WRITE: "writes", WRITE_ZEROES: "zeroes", TRIM: "zeroes", READ: "reads", FLUSH: "flushes"}
                self.counts[name[kind]] += 1
                del self.inflight[cookie]
                self.touched.difference_update(range(first, first + count))
                self.lock.notify_all()


def write(options):
    client = Client(options.socket, options.export)
    state = State(options.state, client.size // SECTOR)
    # A write under way at the last crash may or may not have happened: it must be looked at before it is superseded.
    assert all(stamp == NOTHING for stamp in state.pending), "run `verify` after a crash before writing again"
    writer = Writer(client, state, options)
    print("connected", flush=True)  # whoever kills the server waits for this line
    writer.run()
    state.save()
    unanswered = sum(1 for _, _, _, stamp in writer.inflight.values() if stamp is not None)
    done = ", ".join(f"{count} {name}" for name, count in writer.counts.items())
    print(f"acknowledged: {done}; writes under way at the end: {unanswered}")
    if writer.problem:
        print(f"FAILED: {writer.problem}")
        return 1
    return 0


def verify(options):
    client = Client(options.socket, options.export)
    state = State(options.state, client.size // SECTOR)

    def mismatches():
        step = 1 << 20
        for offset in range(0, client.size, step):
            error, data = client.call(READ, offset, min(step, client.size - offset))
            assert error == 0, f"reading at {offset} failed with error {error}"
            yield from state.mismatches(offset // SECTOR, data)

    return finish(state, mismatches())


def check_file(options):
    state = State(options.state, Path(options.file).stat().st_size // SECTOR)

    def mismatches():
        with Path(options.file).open("rb") as file:
            sector = 0
            while data := file.read(1 << 20):
                yield from state.mismatches(sector, data)
                sector += len(data) // SECTOR

    return 1 if report(mismatches()) else 0


def finish(state, mismatches):
    if report(mismatches):
        return 1
    state.save()
    written = sum(1 for stamp in state.acknowledged if stamp != ZEROES)
    print(f"verified {len(state.acknowledged)} sectors, {written} of them written")
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["write", "verify", "check-file"])
    parser.add_argument("--socket")
    parser.add_argument("--export", default="vol")
    parser.add_argument("--state", required=True)
    parser.add_argument("--file")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sectors-max", type=int, default=128)
    options = parser.parse_args()
    return {"write": write, "verify": verify, "check-file": check_file}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())

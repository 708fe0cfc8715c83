"""The client of `record`: writes stamped sectors and keeps a journal of what it asked for and what it was promised.

At a *fence* the server has promised something that a loss of power must not take back: a FLUSH was answered, or a write
with FUA. Each fence is marked in the log of dm-log-writes before anything else is asked for. So a cut behind the mark
lies behind the promise.

Lines of the journal, in order of time (stamps count up; a stamp is one request):

    w STAMP FIRST COUNT   sectors are about to be written with this stamp
    z STAMP FIRST COUNT   the same, with zeroes (or discarded)
    a STAMP               answered
    f FENCE               a FLUSH is about to be sent: it covers what is answered by now
    F FENCE               it was answered, and the mark FENCE is in the log
    U FENCE STAMP         a write with FUA was answered, and the mark FENCE is in the log

No two requests in flight touch the same sector, so the stamps of a sector are in order.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import struct
import sys
import time
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
from harness.nbd import FLAG_FUA, FLUSH, TRIM, WRITE, WRITE_ZEROES, Client

SECTOR = 512
WINDOW = 8
SECTORS_MAX = 64
# <linux/dm-ioctl.h>: a message to a target. The structure has 312 bytes, then the sector and the text follow.
DM_TARGET_MSG = 0xC138FD0E
DM_BYTES = 312


def content(stamp: int, sector: int) -> bytes:
    """What a sector holds that was written with this stamp."""
    return struct.pack("<QQ", stamp, sector) * (SECTOR // 16)


class LogDevice:
    """The dm-log-writes device, to put marks into its log."""

    def __init__(self, name: str) -> None:
        self.name = name.encode()
        self.control = os.open("/dev/mapper/control", os.O_RDWR)

    def mark(self, text: str) -> None:
        """Returns once the mark is in the log."""
        message = b"mark " + text.encode() + b"\0"
        size = DM_BYTES + 8 + len(message)
        head = struct.pack("<3I3IiIIIQ", 4, 0, 0, size, DM_BYTES, 1, 0, 0, 0, 0, 0) + self.name.ljust(128, b"\0")
        fcntl.ioctl(self.control, DM_TARGET_MSG, head.ljust(DM_BYTES, b"\0") + struct.pack("<Q", 0) + message)


class Writer:
    """One client with a window of requests."""

    def __init__(self, client: Client, log: LogDevice, journal: TextIO, seed: int) -> None:
        self.client, self.log, self.journal = client, log, journal
        self.random = random.Random(seed)
        self.sectors = client.size // SECTOR
        self.in_flight: dict[int, tuple[int, int]] = {}
        self.fua: set[int] = set()
        self.stamp = 0
        self.fence = 0

    def note(self, *words: object) -> None:
        self.journal.write(" ".join(map(str, words)) + "\n")

    def send_one(self) -> None:
        """A write, or zeroes, somewhere where nothing is in flight."""
        count = self.random.choice([1, 8, 8, 8, 16, self.random.randint(1, SECTORS_MAX)])
        # Every third one in a hot tenth: it is overwritten while it is destaged.
        area = self.sectors // (10 if self.random.random() < 0.33 else 1)
        first = self.random.randrange(area - count)
        first -= first % 8 if self.random.random() < 0.8 else 0
        if any(first < at + length and at < first + count for at, length in self.in_flight.values()):
            return
        self.stamp += 1
        stamp, dice = self.stamp, self.random.random()
        self.in_flight[stamp] = (first, count)
        offset, length = first * SECTOR, count * SECTOR
        if dice < 0.06:
            self.note("z", stamp, first, count)
            self.client.request(WRITE_ZEROES if dice < 0.04 else TRIM, stamp, offset, length)
            return
        self.note("w", stamp, first, count)
        data = b"".join(content(stamp, sector) for sector in range(first, first + count))
        if dice > 0.97:
            self.fua.add(stamp)
        self.client.request(WRITE, stamp, offset, length, data, FLAG_FUA if dice > 0.97 else 0)

    def receive_one(self) -> None:
        error, stamp = self.client.reply()
        if error:
            raise SystemExit(f"request {stamp} failed with error {error}")
        del self.in_flight[stamp]
        self.note("a", stamp)
        if stamp in self.fua:
            self.fua.remove(stamp)
            self.fence += 1
            self.log.mark(f"fence-{self.fence}")
            self.note("U", self.fence, stamp)

    def flush(self) -> None:
        """A FLUSH while other requests are in flight."""
        self.fence += 1
        fence, cookie = self.fence, 1 << 63
        self.note("f", fence)
        self.client.request(FLUSH, cookie, 0, 0)
        self.in_flight[cookie] = (self.sectors, 0)
        while cookie in self.in_flight:
            error, stamp = self.client.reply()
            if error:
                raise SystemExit(f"request {stamp} failed with error {error}")
            del self.in_flight[stamp]
            if stamp != cookie:
                self.note("a", stamp)
                self.fua.discard(stamp)
        self.log.mark(f"fence-{fence}")
        self.note("F", fence)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while len(self.in_flight) < WINDOW:
                before = len(self.in_flight)
                self.send_one()
                if len(self.in_flight) == before:
                    break
            if self.in_flight:
                self.receive_one()
            if self.random.random() < 0.02:
                self.flush()
        while self.in_flight:
            self.receive_one()
        self.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--log-device", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    client = Client(options.socket, "vol")
    with options.journal.open("w") as journal:
        writer = Writer(client, LogDevice(options.log_device), journal, options.seed)
        writer.run(options.seconds)
    print(f"writer: {writer.stamp} writes, {writer.fence} fences")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Clients that have much under way and take their answers slowly, but all the time; others write and read beside
them.

    python -m harness.steady SOCKET EXPORT

Fails if one is disconnected, gets an error, or gets nothing for long. Goes on until each has got enough, and long
enough for clients that take nothing to be disconnected."""

import sys
import threading
import time
from collections.abc import Callable

from .nbd import READ, WRITE, Client, Disconnected
from .waiting import SLOWNESS

CLIENTS, DEPTH, LENGTH, PIECE = 16, 32, 1 << 20, 1 << 16
# Bytes a second that each of them takes, and how many it must have got.
RATE, ENOUGH = 2 << 20, 8 << 20
# How often each client beside them must have been served.
ROUNDS = 10
LEAST_SECONDS, MOST_SECONDS = 12, 90 * SLOWNESS
BESIDE = (4096, 128 << 10, 1 << 20)


class Run:
    """What the threads share."""

    def __init__(self, path: str, export: str) -> None:
        self.path, self.export = path, export
        self.began = time.monotonic()
        self.bad: list[str] = []
        self.taken = [0] * CLIENTS
        self.rounds = dict.fromkeys(BESIDE, 0)
        self.longest = dict.fromkeys(BESIDE, 0.0)

    def goes_on(self) -> bool:
        age = time.monotonic() - self.began
        enough = min(self.taken) >= ENOUGH and min(self.rounds.values()) >= ROUNDS
        return not self.bad and age < MOST_SECONDS and not (enough and age > LEAST_SECONDS)

    def guard(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except (Disconnected, AssertionError, SystemExit) as error:
            self.bad.append(f"{work.__name__} {number} after {time.monotonic() - self.began:.1f} s: {error!r}")

    def steadily(self, number: int) -> None:
        """Takes RATE bytes in a second, 64 KiB at once, and keeps DEPTH requests under way."""
        client = Client(self.path, self.export, timeout=60 * SLOWNESS)
        for cookie in range(DEPTH):
            client.request(READ, cookie, cookie << 20, LENGTH)
        start = time.monotonic()
        while self.goes_on():
            error, cookie = client.reply()
            assert error == 0, error
            for _ in range(LENGTH // PIECE):
                client.receive(PIECE)
                self.taken[number] += PIECE
                time.sleep(max(0, start + self.taken[number] / RATE - time.monotonic()))
            client.request(READ, cookie, cookie << 20, LENGTH)

    def beside(self, length: int) -> None:
        client = Client(self.path, self.export, timeout=60 * SLOWNESS)
        while self.goes_on():
            for kind, data in ((WRITE, bytes(length)), (READ, b"")):
                asked = time.monotonic()
                assert client.call(kind, 0, length, data)[0] == 0
                self.longest[length] = max(self.longest[length], time.monotonic() - asked)
            self.rounds[length] += 1
            time.sleep(0.05)


def main() -> int:
    run = Run(*sys.argv[1:])
    threads = [threading.Thread(target=run.guard, args=(run.steadily, number)) for number in range(CLIENTS)]
    threads += [threading.Thread(target=run.guard, args=(run.beside, length)) for length in BESIDE]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"taken: {sum(run.taken) >> 20} MiB, by the slowest {min(run.taken)}; beside them {run.rounds} {run.longest}")
    if min(run.taken) < ENOUGH:
        run.bad.append("one of them got too little")
    if min(run.rounds.values()) < ROUNDS:
        run.bad.append("a client beside them waited as long as they were there")
    print("\n".join(run.bad))
    return 1 if run.bad else 0


if __name__ == "__main__":
    sys.exit(main())

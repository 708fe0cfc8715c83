"""The client of a replay: libnbd, a bounded number of requests in flight, in the order of the trace.

    PYTHONPATH=bench python3 -m tracing.client TRACE SOCKET DEPTH

Run by `daemon.py` with a Python that has libnbd's module. Requests go out in the order of the trace, the next as soon
as one of the DEPTH in flight has ended. A request waits for those in flight that touch the same blocks, if it writes or
they do: so what every read must find is known exactly. Wrong data and errors end the run.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import nbd

from tracing.content import Versions
from tracing.records import BLOCK, Request, read

# A server that answers nothing for so long hangs.
HANGS_S = 120


class Wrong(RuntimeError):
    """The server answered with an error, or with other data than was written."""


class Replay:
    """A connection and what is in flight on it."""

    def __init__(self, uri: str, depth: int) -> None:
        self.depth = depth
        self.versions = Versions()
        self.checked_blocks = 0
        self._connection = nbd.NBD()
        self._connection.connect_uri(uri)
        self._in_flight: dict[int, tuple[int, Request, Any]] = {}
        self._readers: dict[int, int] = {}
        self._writing: set[int] = set()
        self._ended: list[tuple[int, int]] = []

    def run(self, requests: list[Request]) -> None:
        """All of them, and all answers."""
        for at, request in enumerate(requests):
            while len(self._in_flight) >= self.depth or self._is_blocked(request):
                self._wait()
            self._start(at, request)
        while self._in_flight:
            self._wait()
        self._connection.shutdown()

    def _is_blocked(self, request: Request) -> bool:
        numbers = range(request.first, request.first + request.blocks)
        if not self._writing.isdisjoint(numbers):
            return True
        return request.writes and any(number in self._readers for number in numbers)

    def _start(self, at: int, request: Request) -> None:
        numbers = range(request.first, request.first + request.blocks)
        offset = request.first * BLOCK

        def completed(error: Any) -> int:
            self._ended.append((at, error.value))
            return 1

        if request.writes:
            buffer = nbd.Buffer.from_bytearray(bytearray(self.versions.write(request.first, request.blocks)))
            self._writing.update(numbers)
            self._in_flight[at] = (at, request, buffer)
            self._connection.aio_pwrite(buffer, offset, completed)
        else:
            buffer = nbd.Buffer(request.blocks * BLOCK)
            for number in numbers:
                self._readers[number] = self._readers.get(number, 0) + 1
            self._in_flight[at] = (at, request, buffer)
            self._connection.aio_pread(buffer, offset, completed)

    def _wait(self) -> None:
        """Until something has ended."""
        while not self._ended:
            if self._connection.poll(HANGS_S * 1000) == 0:
                raise Wrong(f"no answer in {HANGS_S} s, with {len(self._in_flight)} requests in flight")
        ended, self._ended = self._ended, []
        for at, error in ended:
            self._end(at, error)

    def _end(self, at: int, error: int) -> None:
        _, request, buffer = self._in_flight.pop(at)
        kind = "write" if request.writes else "read"
        what = f"request {at}, a {kind} of {request.blocks} blocks from block {request.first} on"
        if error:
            raise Wrong(f"{what}: the server answered with error {error}")
        numbers = range(request.first, request.first + request.blocks)
        if request.writes:
            self._writing.difference_update(numbers)
            return
        for number in numbers:
            self._readers[number] -= 1
            if not self._readers[number]:
                del self._readers[number]
        wrong = self.versions.check(request.first, bytes(buffer.to_buffer()))
        if wrong:
            raise Wrong(f"{what}: {wrong}")
        self.checked_blocks += request.blocks


def main(trace: str, socket: str, depth: str) -> None:
    """Replays, and prints what was done as JSON."""
    requests = read(Path(trace))
    replay = Replay(f"nbd+unix:///v?socket={socket}", int(depth))
    began = time.monotonic()
    try:
        replay.run(requests)
    except (Wrong, nbd.Error) as failure:
        sys.exit(str(failure))
    took = time.monotonic() - began
    print(json.dumps({"requests": len(requests), "checked_blocks": replay.checked_blocks, "seconds": round(took, 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""An NBD server in a thread, for tests of the client: it waits before each reply, and may lie about what it has."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SIZE = 1 << 20
OPTION_REPLY = 0x3E889045565A9
READ = 0
FUA = 1


@dataclass
class FakeNbd:
    """What it does, and what it was asked."""

    wait_s: float = 0
    lies: bool = False
    flags: list[int] = field(default_factory=list)
    disk: bytearray = field(default_factory=lambda: bytearray(SIZE))

    def serve(self, client: socket.socket) -> None:
        """One connection, to its end."""
        with client, contextlib.suppress(ConnectionError):
            self.answer(client)

    def answer(self, client: socket.socket) -> None:
        """Handshake, then requests."""
        client.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
        take(client, 4)
        _, option, length = struct.unpack(">QII", take(client, 16))
        take(client, length)
        can_fua = 1 | 1 << 3
        info = struct.pack(">HQH", 0, SIZE, can_fua)
        client.sendall(struct.pack(">QIII", OPTION_REPLY, option, 3, len(info)) + info)
        client.sendall(struct.pack(">QIII", OPTION_REPLY, option, 1, 0))
        while True:
            _, flags, kind, cookie, offset, length = struct.unpack(">IHHQQI", take(client, 28))
            reply = struct.pack(">IIQ", 0x67446698, 0, cookie)
            if kind == READ:
                found = bytes(self.disk[offset : offset + length])
                reply += found[:-1] + bytes([found[-1] ^ 1]) if self.lies else found
            else:
                self.flags.append(flags)
                self.disk[offset : offset + length] = take(client, length)
                time.sleep(self.wait_s)
            client.sendall(reply)


def take(client: socket.socket, length: int) -> bytes:
    """So many bytes."""
    found = bytearray()
    while len(found) < length:
        more = client.recv(length - len(found))
        if not more:
            raise ConnectionError("hung up")
        found += more
    return bytes(found)


@contextmanager
def served(fake: FakeNbd, path: Path) -> Iterator[str]:
    """Its unix socket, as the client calls it."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=fake.serve, args=[client], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"unix:{path}"
        listening.shutdown(socket.SHUT_RDWR)

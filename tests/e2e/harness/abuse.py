"""Clients that do not behave. Each one must leave the server serving, and change nothing that it should not."""

import os
import random
import socket
import struct
from pathlib import Path

from .nbd import FLUSH, READ, WRITE, Client, Disconnected

EINVAL, ENOSPC, EOVERFLOW = 22, 28, 75


def garbage(path: Path) -> None:
    """Random bytes instead of a handshake, and instead of the options after a proper greeting."""
    rng = random.Random(1)
    for start in (b"", struct.pack(">I", 3), struct.pack(">IQII", 3, 0x49484156454F5054, 7, 0xFFFFFFFF)):
        for length in (0, 1, 15, 16, 1000, 1 << 20):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(20)
                raw.connect(str(path))
                try:
                    raw.sendall(start + rng.randbytes(length))
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(65536):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the server hung up first


def garbage_after_handshake(path: Path) -> None:
    rng = random.Random(2)
    for length in (1, 27, 28, 1000, 1 << 20):
        client = Client(str(path), "vol", timeout=20)
        try:
            client.send(rng.randbytes(length))
            client.socket.shutdown(socket.SHUT_WR)
            while True:
                client.receive(1)
        except (Disconnected, OSError):
            client.close()


def half_a_write(path: Path) -> None:
    """Header and part of the payload, then gone: the write must not happen, not even in part."""
    before = Client(str(path), "vol")
    error, old = before.call(READ, 0, 65536)
    assert error == 0
    for sent in (0, 1, 4096, 65535):
        client = Client(str(path), "vol")
        client.request(WRITE, 1, 0, 65536, b"\xee" * sent)
        client.close()
    error, new = before.call(READ, 0, 65536)
    assert error == 0 and new == old, "a write that was never sent completely has changed the volume"
    before.close()


def vanish_with_requests_in_flight(path: Path) -> None:
    for _ in range(20):
        client = Client(str(path), "vol")
        for cookie in range(64):
            client.request(READ, cookie, cookie * 65536, 65536)
        client.close()


def out_of_range(path: Path) -> None:
    client = Client(str(path), "vol")
    size = client.size
    for kind, offset, length, allowed in [
        (READ, size, 512, (EINVAL,)),
        (READ, size - 512, 1024, (EINVAL,)),
        (READ, 2**64 - 512, 512, (EINVAL,)),
        (READ, 2**64 - 512, 1024, (EINVAL,)),
        (WRITE, size, 512, (ENOSPC, EINVAL)),
        (WRITE, size - 511, 512, (ENOSPC, EINVAL)),
        (99, 0, 512, (EINVAL,)),
    ]:
        data = bytes(length) if kind == WRITE else b""
        error, _ = client.call(kind, offset, length, data)
        assert error in allowed, f"request {kind} at {offset}+{length}: error {error}, expected one of {allowed}"
    error, _ = client.call(READ, 0, 512)
    assert error == 0, "the connection is of no use after refused requests"
    client.close()


def huge(path: Path) -> None:
    """Longer than any request may be: an error or the end of the connection, and no memory taken for it."""
    for kind, length in ((READ, 2**32 - 1), (READ, 1 << 30), (WRITE, 2**32 - 1)):
        client = Client(str(path), "vol")
        client.request(kind, 1, 0, length)
        if kind == READ:  # the payload of the write never comes
            try:
                error, _ = client.reply()
                assert error in (EINVAL, EOVERFLOW), f"error {error}"
            except Disconnected:
                pass
        client.close()


def unaligned(path: Path) -> None:
    """Single bytes are valid; a neighbour must not change."""
    client = Client(str(path), "vol")
    size = client.size
    shadow = bytearray(os.urandom(3 * 65536))
    assert client.call(WRITE, 65536, len(shadow), bytes(shadow))[0] == 0
    rng = random.Random(3)
    for _ in range(300):
        at = rng.randrange(len(shadow) - 1)
        length = min(rng.choice([1, 2, 3, 511, 513, 4095, 4097, 20000]), len(shadow) - at)
        data = rng.randbytes(length)
        assert client.call(WRITE, 65536 + at, length, data)[0] == 0
        shadow[at : at + length] = data
        at = rng.randrange(len(shadow) - 1)
        length = min(rng.choice([1, 3, 700, 9000]), len(shadow) - at)
        error, found = client.call(READ, 65536 + at, length)
        assert error == 0 and found == shadow[at : at + length], f"bytes {at}+{length} differ"
    assert client.call(FLUSH)[0] == 0
    error, found = client.call(READ, 65536, len(shadow))
    assert error == 0 and found == shadow
    assert client.call(READ, size - 1, 1)[0] == 0
    client.close()

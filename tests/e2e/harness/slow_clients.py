"""Clients that take too much: of memory, and of connections."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from .nbd import OPTION_GO, OPTION_MAGIC, READ, WRITE, Client, Disconnected
from .pressure import header
from .starttls import many_descriptors
from .waiting import SLOWNESS

PIECE = 1 << 20
ACK, REPLY_INFO, ERR_POLICY = 1, 3, 0x80000002


@contextlib.contextmanager
def greedy_clients(path: Path, export: str, count: int) -> Iterator[list[Client]]:
    """So many clients that ask for as much as they can and read nothing."""
    clients = []
    for _ in range(count):
        client = Client(str(path), export, timeout=60)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.setblocking(False)
        client.socket.send(b"".join(header(READ, cookie, cookie % 32 * PIECE, PIECE) for cookie in range(500)))
        clients.append(client)
    yield clients
    for client in clients:
        client.close()


def is_cut_off(client: Client) -> bool:
    """Whether the server has ended the connection, whatever is still to be read of it."""
    try:
        client.socket.send(b"\x25")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def polite_client_is_served(path: Path, export: str) -> None:
    """Small and large requests beside others; none of them waits for more than 30 s."""
    polite = Client(str(path), export, timeout=30 * SLOWNESS)
    block = b"p" * 4096
    assert polite.call(WRITE, 40 << 20, 4096, block)[0] == 0
    assert polite.call(READ, 40 << 20, 4096) == (0, block)
    error, data = polite.call(READ, 0, 4 << 20)
    assert error == 0 and len(data) == 4 << 20
    polite.close()


def only_so_many_are_let_in(path: Path, export: str, attempts: int, most: int) -> None:
    """So many connections are tried; at most so many are let in and served, and one more after the end of those."""
    inside: list[socket.socket] = []
    refused = closed = 0
    with many_descriptors():
        for _ in range(attempts):
            stream = socket.socket(socket.AF_UNIX)
            stream.settimeout(30 * SLOWNESS)
            stream.connect(str(path))
            try:
                kind = go(stream, export)
            except (OSError, Disconnected):
                closed += 1
                stream.close()
                continue
            if kind == ACK:
                inside.append(stream)
            else:
                assert kind == ERR_POLICY, hex(kind)
                refused += 1
                stream.close()
        assert len(inside) == most, f"{len(inside)} are in, not {most}"
        assert refused + closed == attempts - most
        inside[0].sendall(header(READ, 5, 0, 4096))
        assert read(inside[0], 16)[8:] == struct.pack(">Q", 5), "a client that was let in is not served any more"
        for stream in inside:
            stream.close()
    one_is_let_in(path, export)


def one_is_let_in(path: Path, export: str) -> None:
    """A client connects and is served, once the ends of others were noticed."""
    until = time.monotonic() + 30 * SLOWNESS
    while True:
        try:
            client = Client(str(path), export, timeout=30 * SLOWNESS)
            break
        except (AssertionError, Disconnected):
            assert time.monotonic() < until, "no client is let in after the others have gone"
            time.sleep(0.05)
    assert client.call(READ, 0, 4096)[0] == 0
    client.close()


def go(stream: socket.socket, export: str) -> int:
    """A handshake up to the answer to the choice of the export; its kind."""
    read(stream, 18)
    data = struct.pack(">I", len(export)) + export.encode() + struct.pack(">H", 0)
    stream.sendall(struct.pack(">I", 3) + struct.pack(">QII", OPTION_MAGIC, OPTION_GO, len(data)) + data)
    while True:
        _, _, kind, length = struct.unpack(">QIII", read(stream, 20))
        read(stream, length)
        if kind != REPLY_INFO:
            return kind


def read(stream: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise Disconnected("closed")
        data += part
    return data

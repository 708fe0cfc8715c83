"""Clients that take too much: of memory, and of connections. Standard library only.

nbd_slow.py slow SOCKET EXPORT CLIENTS         clients that ask for as much as they can and read nothing; one polite
                                               client among them, which must be served within 30 s at any time
nbd_slow.py many SOCKET EXPORT ATTEMPTS MAX    so many connections are tried; at most MAX may be let in, one after
                                               the end of them must be
"""

import resource
import socket
import struct
import sys
import time

from nbd_client import OPTION_GO, OPTION_MAGIC, READ, WRITE, Client, Disconnected

PIECE = 1 << 20


def slow(path, export, count):
    greedy = []
    for _ in range(count):
        client = Client(path, export, timeout=60)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.setblocking(False)
        wanted = b"".join(
            struct.pack(">IHHQQI", 0x25609513, 0, READ, cookie, cookie % 32 * PIECE, PIECE) for cookie in range(500)
        )
        client.socket.send(wanted)
        greedy.append(client)
    polite = Client(path, export, timeout=30)
    block, longest = b"p" * 4096, 0.0
    until = time.monotonic() + 12
    while time.monotonic() < until:
        begun = time.monotonic()
        assert polite.call(WRITE, 40 << 20, 4096, block)[0] == 0
        assert polite.call(READ, 40 << 20, 4096) == (0, block)
        # Large ones find memory too.
        error, data = polite.call(READ, 0, 4 << 20)
        assert error == 0 and len(data) == 4 << 20
        longest = max(longest, time.monotonic() - begun)
        time.sleep(0.02)
    print(f"{count} clients that read nothing: the polite one waited {longest * 1000:.0f} ms at most")


def many(path, export, attempts, most):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    data = struct.pack(">I", len(export)) + export.encode() + struct.pack(">H", 0)
    hello = struct.pack(">I", 3) + struct.pack(">QII", OPTION_MAGIC, OPTION_GO, len(data)) + data
    inside, refused, closed = [], 0, 0
    for _ in range(attempts):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(30)
        stream.connect(path)
        try:
            kind = go(stream, hello)
        except (OSError, Disconnected):
            closed += 1
            stream.close()
            continue
        if kind == 1:
            inside.append(stream)
        else:
            assert kind == 0x80000002, f"not ERR_POLICY: {kind:#x}"
            refused += 1
            stream.close()
    assert len(inside) == most, f"{len(inside)} are in, not {most}"
    assert refused + closed == attempts - most
    first = inside.pop(0)
    first.sendall(struct.pack(">IHHQQI", 0x25609513, 0, READ, 5, 0, 4096))
    assert read(first, 16)[8:] == struct.pack(">Q", 5), "who was in is not served any more"
    for stream in [first, *inside]:
        stream.close()
    until = time.monotonic() + 30
    while True:
        try:
            client = Client(path, export, timeout=30)
            break
        except (AssertionError, Disconnected):
            assert time.monotonic() < until, "nobody is let in after the others have gone"
            time.sleep(0.05)
    assert client.call(READ, 0, 4096)[0] == 0
    print(f"{attempts} connections: {most} let in, {refused} refused, {closed} closed")


def go(stream, hello):
    read(stream, 18)
    stream.sendall(hello)
    while True:
        _, _, kind, length = struct.unpack(">QIII", read(stream, 20))
        read(stream, length)
        if kind != 3:
            return kind


def read(stream, length):
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise Disconnected("closed")
        data += part
    return data


what, path, export, *numbers = sys.argv[1:]
{"slow": slow, "many": many}[what](path, export, *map(int, numbers))

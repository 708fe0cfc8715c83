"""What a hostile client may try around STARTTLS, byte by byte: plaintext where TLS is required, data behind STARTTLS,
handshakes that never end. Each function fails if the server does not do as it must."""

import contextlib
import resource
import socket
import ssl
import struct
import time
from collections.abc import Iterator

from .waiting import SLOWNESS

OPTION_MAGIC, OPTION_REPLY_MAGIC = 0x49484156454F5054, 0x0003E889045565A9
EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED, SET_META = 1, 2, 3, 5, 6, 7, 8, 10
ACK, ERR_INVALID, ERR_TLS_REQD = 1, 0x80000003, 0x80000005


def option(number: int, data: bytes = b"") -> bytes:
    return struct.pack(">QII", OPTION_MAGIC, number, len(data)) + data


def go(name: bytes) -> bytes:
    return struct.pack(">I", len(name)) + name + struct.pack(">H", 0)


class Peer:
    """A client that chooses its bytes itself."""

    def __init__(self, port: int, flags: int | None = 3, timeout: float = 30) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout * SLOWNESS)
        assert self.read(18)[:16] == b"NBDMAGICIHAVEOPT"
        if flags is not None:
            self.socket.sendall(struct.pack(">I", flags))

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()

    def read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            assert part, f"closed after {data!r}"
            data += part
        return data

    def answer(self, number: int) -> tuple[int, bytes]:
        magic, echoed, kind, length = struct.unpack(">QIII", self.read(20))
        assert (magic, echoed) == (OPTION_REPLY_MAGIC, number), (hex(magic), echoed)
        return kind, self.read(length)

    def ask(self, number: int, data: bytes = b"") -> tuple[int, bytes]:
        self.socket.sendall(option(number, data))
        return self.answer(number)

    def nothing_more(self) -> None:
        """The server closes and has sent nothing."""
        try:
            rest = self.socket.recv(1 << 16)
        except ConnectionResetError:
            rest = b""
        assert rest == b"", rest


def plaintext(port: int) -> None:
    """Every option is refused alike, for exports that exist and for others; the connection goes on."""
    peer = Peer(port)
    for number in (LIST, INFO, GO, STRUCTURED, SET_META, 11, 99):
        for data in (b"", go(b"vol"), go(b"no such export")):
            kind, words = peer.ask(number, data)
            assert kind == ERR_TLS_REQD, (number, hex(kind))
            assert b"vol" not in words, words
    assert peer.ask(STARTTLS, b"x")[0] == ERR_INVALID
    assert peer.ask(ABORT)[0] == ACK
    peer.nothing_more()


def old_way(port: int) -> None:
    for flags, name in ((3, b"vol"), (3, b"nope"), (0, b"vol")):
        peer = Peer(port, flags)
        peer.socket.sendall(option(EXPORT_NAME, name))
        peer.nothing_more()


def injection(port: int) -> None:
    """Data behind STARTTLS in one piece: not even an acknowledgement, and no answer to what was injected."""
    for behind in (option(LIST), option(GO, go(b"vol")), b"\x16", option(STARTTLS)):
        peer = Peer(port)
        peer.socket.sendall(option(STARTTLS) + behind)
        peer.nothing_more()
    # All at once with the flags, as fast as it goes.
    peer = Peer(port, None)
    peer.socket.sendall(struct.pack(">I", 3) + option(STARTTLS) + option(LIST))
    peer.nothing_more()
    # Plaintext after the acknowledgement is no TLS either: an alert at most.
    peer = Peer(port)
    assert peer.ask(STARTTLS)[0] == ACK
    peer.socket.sendall(option(LIST))
    rest = b""
    try:
        while part := peer.socket.recv(4096):
            rest += part
    except ConnectionResetError:
        pass
    assert rest == b"" or (rest[0] == 21 and len(rest) < 16), rest


def endless(port: int) -> None:
    """A handshake that claims to be long and never ends is cut off."""
    peer = Peer(port)
    assert peer.ask(STARTTLS)[0] == ACK
    record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(0x4000 - 4)
    try:
        for _ in range(1000):
            peer.socket.sendall(record)
    except (BrokenPipeError, ConnectionResetError):
        return
    raise AssertionError("16 MB of a handshake were taken")


def slow(port: int) -> None:
    """Clients that do not finish in time are cut off, and not too early: a silent one, one in the middle of an
    option, one in the middle of the TLS handshake."""
    begin = time.monotonic()
    silent, started, middle = Peer(port, None, 60), Peer(port, 3, 60), Peer(port, 3, 60)
    assert started.ask(STARTTLS)[0] == ACK
    started.socket.sendall(b"\x16\x03\x01")
    middle.socket.sendall(option(LIST)[:9])
    for peer in (silent, started, middle):
        peer.nothing_more()
    assert time.monotonic() - begin > 10


def crowd(port: int) -> None:
    """Hundreds of silent connections keep no later client out."""
    crowd = []
    for _ in range(600):
        crowd.append(socket.create_connection(("127.0.0.1", port), 30))
    peer = Peer(port)
    assert peer.ask(LIST)[0] == ERR_TLS_REQD
    for one in crowd:
        one.close()


def client_hello() -> bytes:
    """The first message of a client that means it."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


def vanish(port: int) -> int:
    """A thousand at once begin a handshake and are gone: in the middle of the first message, behind it, and when the
    server has begun to answer; half of them by a reset. Returns how many began."""
    with many_descriptors():
        return vanish_at_once(port, client_hello())


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """This process may have as many files open as it can get."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def vanish_at_once(port: int, hello: bytes) -> int:
    peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(1000)]
    said = 0
    # Most recent ones first: of those that have chosen nothing the server keeps a number, and cuts off the oldest.
    for number, peer in reversed(list(enumerate(peers))):
        with contextlib.suppress(ConnectionError):
            peer.sendall(struct.pack(">I", 3) + option(STARTTLS))
            greeting = b""
            while len(greeting) < 18 + 20 and (part := peer.recv(18 + 20 - len(greeting))):
                greeting += part
            if len(greeting) == 18 + 20:
                peer.sendall(hello[: len(hello) // 2] if number % 3 == 0 else hello)
                said += 1
                if number % 3 == 2:
                    peer.recv(1)
    for number, peer in enumerate(peers):
        if number % 2:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    assert said >= 100, said
    return said

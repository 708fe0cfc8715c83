"""Clients that ask for much and read nothing for a while, more together than the pool has memory for: all of it comes
in the end, and is right. Over TLS to a port, or (with - instead of certificates) to a unix socket.

    python -m harness.pressure PORT|SOCKET CERTIFICATES|- IMAGE CLIENTS REQUESTS"""

import socket
import ssl
import struct
import sys
import threading
import time
from pathlib import Path

from .nbd import FLUSH, OPTION_GO, OPTION_MAGIC, READ, REPLY_MAGIC, REQUEST_MAGIC, WRITE
from .process import Process

STARTTLS, ACK = 5, 1
DISCONNECT = 2
PIECE = 1 << 20
E2E = Path(__file__).resolve().parents[1]


def start_pressure(
    folder: Path, place: object, certificates: Path | None, image: Path, *, clients: int, requests: int
) -> Process:
    """Starts so many clients with so many requests of 1 MiB each, in a process of their own. They must succeed."""
    words = [place, certificates or "-", image, clients, requests]
    command = [sys.executable, "-m", "harness.pressure", *map(str, words)]
    return Process(command, folder / f"pressure-{clients}.err", cwd=E2E)


def read(stream: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = stream.recv(min(length - len(data), 1 << 20))
        if not part:
            raise SystemExit(f"the server closed the connection: {len(data)} of {length} bytes")
        data += part
    return bytes(data)


def answer(stream: socket.socket) -> tuple[int, bytes]:
    _, _, kind, length = struct.unpack(">QIII", read(stream, 20))
    return kind, read(stream, length)


def connect(place: str, certificates: str, export: str = "vol") -> socket.socket:
    """A client of the export, whose next bytes are requests."""
    if certificates == "-":
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(120)
        stream.connect(place)
        read(stream, 18)
        stream.sendall(struct.pack(">I", 3))
        return chosen(stream, export)
    context = ssl.create_default_context(cafile=f"{certificates}/ca-cert.pem")
    context.load_cert_chain(f"{certificates}/client-cert.pem", f"{certificates}/client-key.pem")
    plain = socket.create_connection(("127.0.0.1", int(place)), 120)
    read(plain, 18)
    plain.sendall(struct.pack(">IQII", 3, OPTION_MAGIC, STARTTLS, 0))
    assert answer(plain)[0] == ACK
    return chosen(context.wrap_socket(plain, server_hostname="localhost"), export)


def chosen(stream: socket.socket, export: str) -> socket.socket:
    data = struct.pack(">I", len(export)) + export.encode() + struct.pack(">H", 0)
    stream.sendall(struct.pack(">QII", OPTION_MAGIC, OPTION_GO, len(data)) + data)
    while answer(stream)[0] != ACK:
        pass
    return stream


def header(kind: int, cookie: int, offset: int, length: int) -> bytes:
    return struct.pack(">IHHQQI", REQUEST_MAGIC, 0, kind, cookie, offset, length)


def requests_and_late_answers(stream: socket.socket, image: bytes, requests: int) -> None:
    pieces = len(image) // PIECE
    # In one piece, which sockets have room for: a client that must wait with sending does not come to reading.
    stream.sendall(b"".join(header(READ, cookie, cookie * 7 % pieces * PIECE, PIECE) for cookie in range(requests)))
    time.sleep(3)
    open_requests = set(range(requests))
    while open_requests:
        magic, error, cookie = struct.unpack(">IIQ", read(stream, 16))
        assert (magic, error) == (REPLY_MAGIC, 0), (hex(magic), error)
        open_requests.remove(cookie)
        offset = cookie * 7 % pieces * PIECE
        assert read(stream, PIECE) == image[offset : offset + PIECE], f"wrong data at {offset}"
    # And once more, a write in one piece with what is behind it.
    stream.sendall(header(WRITE, 1, 0, PIECE) + image[:PIECE] + header(FLUSH, 2, 0, 0))
    answers = {struct.unpack(">IIQ", read(stream, 16))[1:] for _ in range(2)}
    assert answers == {(0, 1), (0, 2)}, f"the write and the flush at the end: {answers}"
    stream.sendall(header(DISCONNECT, 3, 0, 0))
    assert stream.recv(1) == b"", "no orderly end"


def client(place: str, certificates: str, image: bytes, requests: int, failures: list[str]) -> None:
    stream = None
    try:
        stream = connect(place, certificates)
        requests_and_late_answers(stream, image, requests)
    except (Exception, SystemExit) as error:
        print(repr(error), flush=True)
        failures.append(repr(error))
    finally:
        if stream:
            stream.close()  # the others need what it holds


def main() -> int:
    place, certificates, path, clients, requests = sys.argv[1:]
    image = Path(path).read_bytes()
    failures: list[str] = []
    arguments = (place, certificates, image, int(requests), failures)
    threads = [threading.Thread(target=client, args=arguments) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

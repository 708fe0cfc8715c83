"""Clients that ask for much and read nothing for a while, more together than the pool has memory for: all of it comes
in the end, and is right. Over TLS to a port, or (with - instead of certificates) to a unix socket. Standard library
only.

    nbd_pressure.py PORT|SOCKET CERTIFICATES|- IMAGE CLIENTS REQUESTS"""

import socket
import ssl
import struct
import sys
import threading
import time
from pathlib import Path

OPTION_MAGIC, STARTTLS, GO = 0x49484156454F5054, 5, 7
PIECE = 1 << 20


def read(stream, length):
    data = bytearray()
    while len(data) < length:
        part = stream.recv(min(length - len(data), 1 << 20))
        if not part:
            raise SystemExit(f"the server closed the connection: {len(data)} of {length} bytes")
        data += part
    return bytes(data)


def answer(stream):
    _, _, kind, length = struct.unpack(">QIII", read(stream, 20))
    return kind, read(stream, length)


def connect(place, certificates):
    if certificates == "-":
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(120)
        stream.connect(place)
        read(stream, 18)
        stream.sendall(struct.pack(">I", 3))
        return chosen(stream)
    context = ssl.create_default_context(cafile=f"{certificates}/ca-cert.pem")
    context.load_cert_chain(f"{certificates}/client-cert.pem", f"{certificates}/client-key.pem")
    plain = socket.create_connection(("127.0.0.1", int(place)), 120)
    read(plain, 18)
    plain.sendall(struct.pack(">IQII", 3, OPTION_MAGIC, STARTTLS, 0))
    assert answer(plain)[0] == 1
    return chosen(context.wrap_socket(plain, server_hostname="localhost"))


def chosen(stream):
    data = struct.pack(">I", 3) + b"vol" + struct.pack(">H", 0)
    stream.sendall(struct.pack(">QII", OPTION_MAGIC, GO, len(data)) + data)
    while answer(stream)[0] != 1:
        pass
    return stream


def client(place, certificates, image, requests, failures):
    stream = None
    try:
        stream = connect(place, certificates)
        pieces = len(image) // PIECE
        # In one piece, which sockets have room for: who must wait with sending does not come to reading.
        wanted = [cookie * 7 % pieces * PIECE for cookie in range(requests)]
        requested = (struct.pack(">IHHQQI", 0x25609513, 0, 0, *which, PIECE) for which in enumerate(wanted))
        stream.sendall(b"".join(requested))
        time.sleep(3)
        open_requests = set(range(requests))
        while open_requests:
            magic, error, cookie = struct.unpack(">IIQ", read(stream, 16))
            assert (magic, error) == (0x67446698, 0), (hex(magic), error)
            open_requests.remove(cookie)
            offset = cookie * 7 % pieces * PIECE
            assert read(stream, PIECE) == image[offset : offset + PIECE], f"wrong data at {offset}"
        # And once more, a write in one piece with what is behind it.
        write = struct.pack(">IHHQQI", 0x25609513, 0, 1, 1, 0, PIECE) + image[:PIECE]
        flush = struct.pack(">IHHQQI", 0x25609513, 0, 3, 2, 0, 0)
        stream.sendall(write + flush)
        answers = {struct.unpack(">IIQ", read(stream, 16))[1:] for _ in range(2)}
        assert answers == {(0, 1), (0, 2)}, f"the write and the flush at the end: {answers}"
        stream.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 3, 0, 0))
        assert stream.recv(1) == b"", "no orderly end"
    except (Exception, SystemExit) as error:
        print(repr(error), flush=True)
        failures.append(repr(error))
    finally:
        if stream:
            stream.close()  # the others need what it holds


def main():
    place, certificates, path, clients, requests = sys.argv[1:]
    image = Path(path).read_bytes()
    failures = []
    arguments = (place, certificates, image, int(requests), failures)
    threads = [threading.Thread(target=client, args=arguments) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

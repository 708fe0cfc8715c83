"""A minimal NBD client: fixed newstyle handshake, simple replies. Standard library only.

It sends what it is told to, sensible or not: the tests use it to be rude as well."""

import socket
import struct

READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
FLAG_FUA = 1
REQUEST_MAGIC, REPLY_MAGIC = 0x25609513, 0x67446698
OPTION_MAGIC, OPTION_REPLY_MAGIC = 0x49484156454F5054, 0x0003E889045565A9
OPTION_GO, REPLY_ACK, REPLY_INFO = 7, 1, 3


class Disconnected(Exception):
    """The server is gone."""


class Client:
    def __init__(self, path, export, timeout=120):
        # A unix socket, or 127.0.0.1:PORT.
        host, _, port = path.rpartition(":")
        tcp = bool(host) and "/" not in path
        self.socket = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.size = self.flags = None
        try:
            self.socket.connect((host, int(port)) if tcp else path)
            self._handshake(export.encode())
        except BaseException:
            self.socket.close()
            raise

    def _handshake(self, export):
        greeting = self.receive(18)
        assert greeting[:16] == b"NBDMAGICIHAVEOPT", greeting
        self.send(struct.pack(">I", 3))  # fixed newstyle, no zeroes
        data = struct.pack(">I", len(export)) + export + struct.pack(">H", 0)
        self.send(struct.pack(">QII", OPTION_MAGIC, OPTION_GO, len(data)) + data)
        while True:
            magic, _, kind, length = struct.unpack(">QIII", self.receive(20))
            assert magic == OPTION_REPLY_MAGIC, magic
            data = self.receive(length)
            if kind == REPLY_ACK:
                return
            assert kind == REPLY_INFO, f"the server refused the export: {kind:#x} {data!r}"
            if data[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", data[2:12])

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Disconnected(str(error)) from error

    def receive(self, length):
        parts = []
        while length:
            try:
                part = self.socket.recv(min(length, 1 << 20))
            except TimeoutError:
                raise SystemExit("no answer from the server: it hangs") from None
            except OSError as error:
                raise Disconnected(str(error)) from error
            if not part:
                raise Disconnected("end of stream")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def request(self, kind, cookie, offset, length, data=b"", flags=0):
        self.send(struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, cookie, offset, length) + data)

    def reply(self):
        """The next reply: (error, cookie)."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == REPLY_MAGIC, f"not a simple reply: {magic:#x}"
        return error, cookie

    def call(self, kind, offset=0, length=0, data=b"", flags=0):
        """One request and its reply: (error, bytes read)."""
        self.request(kind, 7, offset, length, data, flags)
        error, cookie = self.reply()
        assert cookie == 7, cookie
        return error, self.receive(length) if kind == READ and not error else b""

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

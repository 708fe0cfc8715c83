"""Clients that begin a write and do not end it, and those that go while they wait. Standard library only.

    nbd_stalled.py CASE FOLDER PORT

There are volumes `db` and `o` of one pool, at FOLDER/db.sock, FOLDER/o.sock, and `db` at PORT."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

from nbd_client import READ, REQUEST_MAGIC, WRITE, Client, Disconnected

MIB = 1 << 20
FOLDER, PORT = sys.argv[2], sys.argv[3]


def half_writes(place, length, count, sent=1000):
    """So many connections, each with the header of a write and a little of its payload."""
    clients = []
    for _ in range(count):
        client = Client(place, "db", timeout=10)
        client.send(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, WRITE, 1, 0, length) + bytes(min(sent, length - 1)))
        clients.append(client)
    return clients


def is_served(export, seconds, longest=4096):
    for kind, length in ((READ, 4096), (WRITE, 4096), (WRITE, 512), (READ, longest), (WRITE, longest)):
        begun = time.monotonic()
        client = Client(f"{FOLDER}/{export}.sock", export, timeout=seconds)
        assert client.call(kind, 8192, length, b"q" * length if kind == WRITE else b"")[0] == 0
        client.close()
        print(f"  {export}: request {kind} of {length} bytes: {time.monotonic() - begun:.2f} s", flush=True)


def are_there(clients):
    there = 0
    for client in clients:
        client.socket.setblocking(False)
        try:
            there += client.socket.recv(1) != b""
        except BlockingIOError:
            there += 1
        except OSError:
            pass
    return there


def connections(volume):
    told = subprocess.run(
        [os.environ["FOREBAY"], "volume", "list", "--json", "--admin", f"{FOLDER}/admin.sock"],
        capture_output=True,
        check=True,
    )
    return next(found["connections"] for found in json.loads(told.stdout) if found["name"] == volume)


def longest():
    """Each length that was promised, also behind an answer that is not taken."""
    client = Client(f"{FOLDER}/o.sock", "o", timeout=20)
    for length in (1, 4, 5, 6, 8, 12, 16, 24, 32):
        data = bytes([length]) * (length * MIB - 3)
        assert client.call(WRITE, 1, len(data), data)[0] == 0, f"a write of {length} MiB"
        assert client.call(READ, 1, len(data)) == (0, data), f"a read of {length} MiB"
    request = struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, 1, 0, 32 * MIB)
    client.send(request + struct.pack(">IHHQQI", REQUEST_MAGIC, 0, WRITE, 2, 0, 32 * MIB) + bytes(32 * MIB))
    assert client.reply() == (0, 1)
    client.receive(32 * MIB)
    assert client.reply() == (0, 2), "a write that was sent before the answer of a read was taken"


def tried_again(case):
    """What takes too long once may be the machine's fault: a server that makes others wait does so each time."""

    def tried():
        for tries in (2, 1, 0):
            clients = []
            try:
                case(clients)
                break
            except SystemExit as error:
                if not tries:
                    raise
                print(f"  again: {error}", flush=True)
            finally:
                for client in clients:
                    client.close()

    return tried


@tried_again
def stalled(clients):
    """They have what their volume may have: the other one notices nothing, and their own one is served when they are
    cut off."""
    place = f"{FOLDER}/db.sock"
    for length, count in ((32 * MIB, 6), (MIB, 20), (65536, 60), (4096, 60)):
        clients += half_writes(place, length, count)
    time.sleep(1)
    is_served("o", 4, 32 * MIB)
    is_served("db", 60, 8 * MIB)
    assert are_there(clients) < len(clients), "nobody was disconnected"


@tried_again
def trickle(clients):
    """A byte now and then is progress: nobody is cut off in ten seconds, and the other volume does not wait."""
    clients += half_writes(f"{FOLDER}/db.sock", 32 * MIB, 6)
    for _ in range(40):
        for client in clients:
            client.send(b"x")
        time.sleep(0.25)
    is_served("o", 4, 32 * MIB)
    assert are_there(clients) == len(clients), "somebody who sends was disconnected"


def gone():
    """Clients that close while they wait, over both kinds of sockets, one of them with an RST."""
    stays = half_writes(f"{FOLDER}/db.sock", 32 * MIB, 6)
    keeps = threading.Event()

    def go_on():  # they make progress, so they keep what they have
        while not keeps.wait(0.25):
            for client in stays:
                client.send(b"x")

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        time.sleep(0.5)
        for place, sent in ((f"{FOLDER}/db.sock", 1000), (f"{FOLDER}/db.sock", 100_000), (PORT, 1000)):
            for linger in (None, struct.pack("ii", 1, 0)):
                for client in half_writes(place, 32 * MIB, 5, sent):
                    if linger:
                        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    client.close()
        until = time.monotonic() + 20
        while (count := connections("db")) > len(stays):
            assert time.monotonic() < until, f"{count} connections, and {len(stays)} clients are there"
            time.sleep(0.1)
    finally:
        keeps.set()
        thread.join()


try:
    {"longest": longest, "stalled": stalled, "trickle": trickle, "gone": gone}[sys.argv[1]]()
except Disconnected as error:
    raise SystemExit(f"disconnected: {error}") from None

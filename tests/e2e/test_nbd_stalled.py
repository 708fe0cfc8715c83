"""Clients that begin writes and do not end them, or go while they wait for memory: every promised length is served
with the least memory that can be configured, the other volumes of the pool do not wait, and connections of clients
that have gone end."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.nbd import READ, WRITE, Client
from harness.pressure import header
from harness.waiting import SLOWNESS, eventually

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
buffer_memory = "192MiB"

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["nbd+unix:///db?socket={folder}/db.sock", "nbd://127.0.0.1:{port}/db"]

[volume.o]
pool = "fast"
backing = "file:{folder}/o.img"
exports = ["nbd+unix:///o?socket={folder}/o.sock"]
"""
# What takes too long once may be the machine's fault: a server that makes others wait does so each time.
TRIES = 4


class World:
    """Two volumes of one pool."""

    def __init__(self, daemon: Daemon, port: int) -> None:
        self.daemon = daemon
        self.tcp = f"127.0.0.1:{port}"
        self.unix = str(daemon.socket("db"))
        for name in ("db", "o"):
            sparse(daemon.folder / f"{name}.img", 64 * MIB)
        daemon.configure(CONFIG.format(folder=daemon.folder, port=port))
        daemon.start()

    def is_served(self, export: str, seconds: float, longest: int) -> None:
        """Reads and writes of new clients, none of which waits for longer."""
        for kind, length in ((READ, 4096), (WRITE, 4096), (WRITE, 512), (READ, longest), (WRITE, longest)):
            with closing(Client(str(self.daemon.socket(export)), export, timeout=seconds * SLOWNESS)) as client:
                assert client.call(kind, 8192, length, b"q" * length if kind == WRITE else b"")[0] == 0

    def ends(self) -> None:
        self.daemon("volume", "detach", "db")
        self.daemon.stop()


@pytest.fixture
def world(daemon: Daemon, free_port: Callable[[], int]) -> World:
    return World(daemon, free_port())


@contextlib.contextmanager
def closing(client: Client) -> Iterator[Client]:
    try:
        yield client
    finally:
        client.close()


def half_writes(place: str, length: int, count: int, sent: int = 1000) -> list[Client]:
    """So many connections, each with the header of a write and a little of its payload."""
    clients = []
    for _ in range(count):
        clients.append(Client(place, "db", timeout=30))
        clients[-1].send(header(WRITE, 1, 0, length) + bytes(min(sent, length - 1)))
    return clients


def are_there(clients: list[Client]) -> int:
    """How many are still connected."""
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


def several_tries(case: Callable[[list[Client]], None]) -> None:
    """At least one try must succeed. `case` puts the clients that it makes into the list."""
    for left in reversed(range(TRIES)):
        clients: list[Client] = []
        try:
            case(clients)
            return
        except SystemExit:  # no answer in time
            if not left:
                raise
        finally:
            for client in clients:
                client.close()


def test_each_promised_length_is_served(world: World) -> None:
    """Also behind an answer that is not taken."""
    with closing(Client(str(world.daemon.socket("o")), "o", timeout=60)) as client:
        for length in (1, 4, 5, 6, 8, 12, 16, 24, 32):
            data = bytes([length]) * (length * MIB - 3)
            assert client.call(WRITE, 1, len(data), data)[0] == 0, f"a write of {length} MiB"
            assert client.call(READ, 1, len(data)) == (0, data), f"a read of {length} MiB"
        client.send(header(READ, 1, 0, 32 * MIB) + header(WRITE, 2, 0, 32 * MIB) + bytes(32 * MIB))
        assert client.reply() == (0, 1)
        client.receive(32 * MIB)
        assert client.reply() == (0, 2), "a write that was sent before the answer of a read was taken"
    world.ends()


def test_stalled_writes_do_not_delay_others(world: World) -> None:
    """They have what their volume may have: the other one does not wait; theirs is served when they are cut off."""

    def stalled(clients: list[Client]) -> None:
        for length, count in ((32 * MIB, 6), (MIB, 20), (65536, 60), (4096, 60)):
            clients += half_writes(world.unix, length, count)
        time.sleep(1)
        # Those that send nothing are cut off after five seconds.
        world.is_served("o", 4, 32 * MIB)
        world.is_served("db", 60, 8 * MIB)
        assert are_there(clients) < len(clients), "none was disconnected"

    several_tries(stalled)
    world.daemon.logged("client.refused", ["uid "])
    assert world.daemon.events("client.refused")
    world.ends()


def test_trickling_writes_are_progress(world: World) -> None:
    """A byte now and then: none is cut off in ten seconds, and the other volume does not wait."""

    def trickle(clients: list[Client]) -> None:
        clients += half_writes(world.unix, 32 * MIB, 6)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            for client in clients:
                client.send(b"x")
            time.sleep(0.25)
        world.is_served("o", 4, 32 * MIB)
        assert are_there(clients) == len(clients), "one that sends was disconnected"

    several_tries(trickle)
    world.ends()


def test_clients_that_are_gone_are_let_go(world: World) -> None:
    """They close while they wait, over both kinds of sockets, some of them with an RST."""
    stays = half_writes(world.unix, 32 * MIB, 6)

    def connections() -> int:
        for client in stays:  # they make progress, so they keep what they have
            client.send(b"x")
        return world.daemon.volume("db")["connections"]

    eventually(lambda: connections() == len(stays), 20, "the clients that stay are connected")
    for place, sent in ((world.unix, 1000), (world.unix, 100_000), (world.tcp, 1000)):
        for linger in (None, struct.pack("ii", 1, 0)):
            connections()
            for client in half_writes(place, 32 * MIB, 5, sent):
                if linger:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.close()
    eventually(lambda: connections() <= len(stays), 20, "connections of clients that have gone end")
    for client in stays:
        client.close()
    world.ends()

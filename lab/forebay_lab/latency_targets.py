"""What acknowledges messages, how it is started, and the clients that measure it; see `latency`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import harness
from fio_client import fio

from . import binaries, java, servers
from .experiment import Binary, Refused, Work
from .ports import free_port

MIB = 1 << 20
SECTOR = 512
# The volume stays below the share of its cache at which Forebay begins to write back (10 %).
VOLUME_MIB = 64
CACHE_MIB = 1024
KRYONET = "kryonet"
# So many messages are read back after a row, of all connections together.
VERIFIED = 4000
# A load at the limit is waited for this much longer than it should take.
PATIENCE = 10


@dataclass(frozen=True)
class Target:
    """What acknowledges: `server` is forebay, null or kryonet, `way` how the client gets there."""

    server: str
    way: str
    fua: bool = False
    ports_each: bool = False
    by_fio: bool = False


TARGETS = {
    KRYONET: Target("kryonet", "kryonet"),
    "kryonet-ports": Target("kryonet", "kryonet", ports_each=True),
    "forebay-unix": Target("forebay", "unix"),
    "forebay-tcp": Target("forebay", "tcp"),
    "forebay-fua": Target("forebay", "unix", fua=True),
    "null-unix": Target("null", "unix"),
    "null-tcp": Target("null", "tcp"),
    "forebay-fio": Target("forebay", "unix", by_fio=True),
}


@dataclass(frozen=True)
class Point:
    """What a row measures."""

    target: Target
    size: int
    connections: int

    @property
    def sent(self) -> int:
        """Bytes of a message as it goes out."""
        return self.size if self.target.server == KRYONET else (self.size + SECTOR - 1) // SECTOR * SECTOR


class Client:
    """What sends messages and measures."""

    def measure(self, rate: float, warm_s: float, seconds: float) -> dict[str, float]:
        """Sends `rate` messages a second, or, if that is 0, as many as are acknowledged; times in microseconds."""
        raise NotImplementedError

    def verify(self) -> int:
        """Compares what was sent with what is there; returns the number of messages."""
        raise NotImplementedError


class Load(Client):
    """The lab's own client."""

    def __init__(self, program: java.Program, point: Point) -> None:
        self.program = program
        self.point = point

    def measure(self, rate: float, warm_s: float, seconds: float) -> dict[str, float]:
        # What was due in time is waited for, however long that takes: a queue of the last moment must not be left out.
        limit_s = PATIENCE * (warm_s + seconds) + 60
        found = self.program.ask({"rate": round(rate, 3), "warm": warm_s, "seconds": seconds}, limit_s)
        if not found["messages"]:
            raise Refused(f"no message of {self.point} was acknowledged in {seconds} s")
        return {name: round(float(value), 3) for name, value in found.items() if value is not None}

    def verify(self) -> int:
        if self.point.target.server == "null":
            return 0
        newest = max(10, VERIFIED // self.point.connections)
        return int(float(self.program.ask({"verify": newest}, 120)["verified"] or 0))


@contextmanager
def load(uri: str, point: Point, work: Work) -> Iterator[Load]:
    """Starts the client: `uri` is what `Load` calls the target."""
    options: dict[str, str | int] = {
        "target": uri,
        "export": "v",
        "connections": point.connections,
        "size": point.size,
        "fua": int(point.target.fua),
    }
    java.build()
    with java.program(java.command("echo", "Load", options, ["-Xmx512m"]), "load", work) as program:
        yield Load(program, point)


class Fio(Client):
    """fio's nbd engine: a thread with a connection for each job."""

    def __init__(self, uri: str, point: Point) -> None:
        self.socket = uri.removeprefix("unix:")
        self.point = point

    def measure(self, rate: float, warm_s: float, seconds: float) -> dict[str, float]:
        count, sent = self.point.connections, self.point.sent
        part = VOLUME_MIB * MIB // count // sent * sent
        job = ["--rw=write", f"--bs={sent}", f"--numjobs={count}", "--thread", f"--size={part}"]
        job += [f"--offset_increment={part}", f"--ramp_time={round(warm_s * 1000)}ms"]
        if rate:
            job += [f"--rate_iops={max(1, round(rate / count))}", "--rate_process=poisson"]
        target = ["--ioengine=nbd", f"--uri=nbd+unix:///v?socket={self.socket}"]
        try:
            found = fio(target, job, seconds).main
        except harness.Failure as error:
            raise Refused(str(error)) from None
        return {
            "messages": found.requests,
            "per_s": round(found.iops, 3),
            "mean_us": round(found.mean_us, 3),
            "p50_us": found.p50_us,
            "p99_us": found.p99_us,
            "max_us": found.max_us,
        }

    def verify(self) -> int:
        return 0


@contextmanager
def serve_forebay(point: Point, work: Work) -> Iterator[str]:
    """Forebay in front of a file that it can keep in its cache as a whole; everything on the flash."""
    disk = work.folder / "disk"
    with disk.open("wb") as file:
        file.truncate(VOLUME_MIB * MIB)
    command = [
        str(harness.FOREBAY),
        "run",
        "--new-cache",
        "--backing",
        f"file:{disk}",
        "--cache",
        f"{work.folder}/flash:{CACHE_MIB}MiB",
    ]
    with nbd(command, point, work) as uri:
        yield uri


@contextmanager
def serve_null(point: Point, work: Work) -> Iterator[str]:
    """The export without storage."""
    with nbd([str(binaries.path(Binary.NULL))], point, work) as uri:
        yield uri


@contextmanager
def nbd(command: Sequence[str], point: Point, work: Work) -> Iterator[str]:
    """A server with an export `v`, where the point wants it."""
    if point.target.way == "tcp":
        port = free_port()
        export, uri = f"nbd://127.0.0.1:{port}/v", f"tcp:{port}"
    else:
        socket = work.folder / "s"
        export, uri = f"nbd+unix:///v?socket={socket}", f"unix:{socket}"
    with servers.server(
        [*command, "--export", export], work.folder / "server.log", work.ledger, lambda one: "ready: " in one.said()
    ):
        yield uri


@contextmanager
def serve_kryonet(point: Point, work: Work) -> Iterator[str]:
    """The echo server; a server of Kryonet is a port and a thread."""
    options = {"ports": point.connections if point.target.ports_each else 1, "size": point.size}
    java.build()
    with java.program(java.command("echo", "KryonetEcho", options, ["-Xmx512m"]), "kryonet", work) as program:
        yield f"kryonet:{program.greeting['ports']}"


SERVE = {"forebay": serve_forebay, "null": serve_null, KRYONET: serve_kryonet}

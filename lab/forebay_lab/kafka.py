"""Brokers of Kafka, each with its own folder: brokers and controllers in one process, no ZooKeeper."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import java, servers
from .experiment import Work
from .ports import free_port

JVM = ("-Xms256m", "-Xmx512m")
START_LIMIT_S = 180
# More than the largest batch.
LARGEST_BYTES = 32 << 20


def settings(number: int, ports: list[tuple[int, int]], folder: Path) -> str:
    """The configuration of a broker; `ports` are those of all, of clients and of controllers."""
    clients, controllers = ports[number - 1]
    count = len(ports)
    voters = ",".join(f"{other}@127.0.0.1:{port}" for other, (_, port) in enumerate(ports, start=1))
    lines = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controllers}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder,
        "offsets.topic.replication.factor": count,
        "transaction.state.log.replication.factor": count,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "message.max.bytes": LARGEST_BYTES,
        "replica.fetch.max.bytes": LARGEST_BYTES,
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def cluster_id(random: bytes) -> str:
    """The name of a cluster, from 16 random bytes, in base64 as Kafka writes its UUIDs.

    The first bit is cleared: a name that begins with `-` is taken for an option (Kafka draws another one then).
    """
    return base64.urlsafe_b64encode(bytes([random[0] & 0x7F]) + random[1:]).decode().rstrip("=")


@contextmanager
def brokers(count: int, data: Path, work: Work) -> Iterator[str]:
    """So many brokers, with their data in a folder each below `data`, until the block ends; gives their addresses."""
    java.build()
    ports = [(free_port(), free_port()) for _ in range(count)]
    cluster = cluster_id(os.urandom(16))
    with ExitStack() as stack:
        configured = []
        for number in range(1, count + 1):
            file = work.folder / f"kafka-{number}.properties"
            file.write_text(settings(number, ports, data / f"broker-{number}"))
            servers.run(java.tool("kafka", "kafka.tools.StorageTool", ["format", "-t", cluster, "-c", str(file)]))
            configured.append(file)
        running = []
        for file in configured:
            words = java.tool("kafka", "kafka.Kafka", [str(file)], JVM)
            log = file.with_suffix(".log")
            running.append(stack.enter_context(servers.server(words, log, work.ledger, lambda _: True)))
        # A broker is ready when most of them are there: they are waited for together.
        for one in running:
            servers.wait_until_ready(one, lambda server: "Kafka Server started" in server.said(), START_LIMIT_S)
        yield ",".join(f"127.0.0.1:{port}" for port, _ in ports)

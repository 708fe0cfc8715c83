"""Nodes of Cassandra on addresses of the loopback interface, each with its own folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import java, servers
from .experiment import Work
from .ports import free_port

START_LIMIT_S = 300
# What Cassandra's own start script opens of the JDK, for Java 17.
OPENED = [
    "java.io",
    "java.lang",
    "java.lang.module",
    "java.lang.ref",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "jdk.internal.loader",
    "jdk.internal.math",
    "jdk.internal.misc",
    "jdk.internal.module",
    "jdk.internal.ref",
    "jdk.internal.reflect",
    "jdk.internal.util.jar",
]
EXPORTED = [
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.attach/sun.tools.attach",
]


@dataclass(frozen=True)
class Nodes:
    """Where clients find them."""

    hosts: list[str]
    port: int
    jmx: list[int]


def settings(host: str, seed: str, storage_port: int, port: int, data: Path, *, sync: bool) -> str:
    """The configuration of a node; with `sync` a write is acknowledged only when the commit log has it durably.

    Nodes have nothing yet when they join: there is nothing to bootstrap from.
    """
    log = "commitlog_sync: batch" if sync else "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms"
    return f"""\
cluster_name: lab
num_tokens: 4
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{seed}:{storage_port}"
listen_address: {host}
rpc_address: {host}
storage_port: {storage_port}
native_transport_port: {port}
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
data_file_directories: ["{data}/data"]
commitlog_directory: "{data}/commitlog"
hints_directory: "{data}/hints"
saved_caches_directory: "{data}/saved_caches"
cdc_raw_directory: "{data}/cdc_raw"
{log}
commitlog_segment_size: 32MiB
commitlog_total_space: 512MiB
memtable_allocation_type: heap_buffers
memtable_heap_space: 128MiB
native_transport_max_frame_size: 32MiB
batch_size_warn_threshold: 32MiB
batch_size_fail_threshold: 32MiB
write_request_timeout: 60000ms
read_request_timeout: 60000ms
range_request_timeout: 60000ms
request_timeout: 60000ms
auto_snapshot: false
auto_bootstrap: false
"""


def jvm(file: Path, data: Path, jmx: int, *, alone: bool) -> list[str]:
    """Options of the Java machine of a node."""
    opened = [f"java.base/{name}=ALL-UNNAMED" for name in OPENED]
    modules = [word for name in opened for word in ("--add-opens", name, "--add-exports", name)]
    modules += [word for name in EXPORTED for word in ("--add-exports", f"{name}=ALL-UNNAMED")]
    modules += ["--add-opens", "jdk.management/com.sun.management.internal=ALL-UNNAMED"]
    properties = {
        "jdk.attach.allowAttachSelf": "true",
        "cassandra.config": f"file://{file}",
        "cassandra.storagedir": str(data),
        # A node that is alone need not wait to hear of others.
        "cassandra.ring_delay_ms": "0" if alone else "5000",
        "cassandra.skip_wait_for_gossip_to_settle": "0" if alone else "-1",
        "cassandra.superuser_setup_delay_ms": "0",
        "cassandra-foreground": "yes",
        "cassandra.jmx.local.port": str(jmx),
    }
    agent = f"-javaagent:{java.TARGET}/cassandra/lib/jamm-0.4.0.jar"
    defined = [f"-D{key}={value}" for key, value in properties.items()]
    return ["-Xms512m", "-Xmx1024m", "-XX:+UseG1GC", agent, *modules, *defined]


@contextmanager
def nodes(count: int, data: Path, work: Work, *, sync: bool) -> Iterator[Nodes]:
    """So many nodes, one after the other, with their data below `data`, until the block ends."""
    java.build()
    hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
    found = Nodes(hosts, free_port(), [free_port() for _ in hosts])
    storage_port = free_port()
    with ExitStack() as stack:
        for number, host in enumerate(hosts):
            folder = data / f"node-{number + 1}"
            folder.mkdir(parents=True)
            file = work.folder / f"cassandra-{number + 1}.yaml"
            file.write_text(settings(host, hosts[0], storage_port, found.port, folder, sync=sync))
            words = java.tool(
                "cassandra",
                "org.apache.cassandra.service.CassandraDaemon",
                [],
                jvm(file, folder, found.jmx[number], alone=count == 1),
            )
            stack.enter_context(
                servers.server(
                    words,
                    file.with_suffix(".log"),
                    work.ledger,
                    lambda one: "Starting listening for CQL" in one.said(),
                    limit_s=START_LIMIT_S,
                )
            )
        yield found

"""Which points of the blob experiment are measured: one parameter is varied at a time around a base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .experiment import Scale

# No store takes batches of any size: larger ones have fewer blobs.
BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class Point:
    """What is measured: sizes in bytes, batches in blobs."""

    size: int = 100
    batch: int = 256
    connections: int = 4
    partitions: int = 1
    replicas: int = 1
    consistency: str = ""

    @property
    def fitting(self) -> Point:
        """The same with a batch that stores take."""
        return replace(self, batch=max(1, min(self.batch, BATCH_BYTES // self.size)))


@dataclass(frozen=True)
class Kind:
    """A store as it is set up: `store` is kafka, cassandra or files."""

    store: str
    servers: int = 1
    consistency: str = ""
    sync: bool = False
    """Cassandra's commit log is durable before a write is acknowledged: a setting of the server."""


KINDS = {
    "files": Kind("files", consistency="sync"),
    "kafka": Kind("kafka", consistency="all"),
    "kafka-2": Kind("kafka", servers=2, consistency="all"),
    "cassandra": Kind("cassandra", consistency="ONE"),
    "cassandra-sync": Kind("cassandra", consistency="ONE", sync=True),
    "cassandra-2": Kind("cassandra", servers=2, consistency="ONE"),
}
# Sizes between 10 and 20 KB: both were published.
SIZES = (1_000, 10_000, 20_000, 500_000, 5_000_000)
BATCHES = (1, 128, 512, 1024, 8196, 32768)
CONNECTIONS = (1, 2, 8, 24)
PARTITIONS = {"files": (), "kafka": (2, 4, 8), "cassandra": (8, 64)}
CONSISTENCIES = {
    "files": ("none",),
    "kafka": ("1", "sync"),
    "kafka-2": ("1", "sync"),
    "cassandra": ("ANY",),
    "cassandra-2": ("ANY", "TWO"),
}


@dataclass(frozen=True)
class Length:
    """How much is measured at a scale."""

    image_mib: int
    cache_mib: int
    point_bytes: int
    """Of blobs at a point, at most."""
    blobs: int
    """At a point, at most."""
    point_s: float
    verified_bytes: int
    """Read back of a point; 0: all."""
    rows: Sequence[tuple[str, str]]
    """Kind of store, and what it is on."""


BACKENDS = ("disk", "forebay", "raw")
LENGTHS = {
    Scale.SMOKE: Length(1024, 512, 1 << 30, 40, 5, 0, [(kind, "forebay") for kind in ("files", "kafka", "cassandra")]),
    Scale.QUICK: Length(
        2048,
        1024,
        16 << 20,
        200_000,
        1.5,
        2 << 20,
        [
            *(("files", backend) for backend in BACKENDS),
            ("kafka", "disk"),
            ("kafka", "forebay"),
            ("cassandra", "forebay"),
        ],
    ),
    Scale.FULL: Length(
        8192, 4096, 256 << 20, 2_000_000, 15, 32 << 20, [(kind, backend) for kind in KINDS for backend in BACKENDS]
    ),
}


def points(name: str, scale: Scale) -> Mapping[str, Point]:
    """The points of a kind of store by name; the base is the first."""
    kind = KINDS[name]
    base = Point(replicas=kind.servers, consistency=kind.consistency)
    if scale is Scale.SMOKE:
        return {"base": replace(base, batch=16, connections=2, size=1000)}
    if scale is Scale.QUICK:
        # A point of Cassandra takes ten seconds to make and delete.
        return {"base": base} if kind.store == "cassandra" else {"base": base, "size=20000": replace(base, size=20_000)}
    found = {"base": base}
    if kind.servers > 1:
        found["replicas=1"] = replace(base, replicas=1)
    found |= {f"consistency={one}": replace(base, consistency=one) for one in CONSISTENCIES.get(name, ())}
    if kind.servers > 1 or kind.sync:
        return found
    found |= {f"size={size}": replace(base, size=size).fitting for size in SIZES}
    found |= {f"batch={batch}": replace(base, batch=batch) for batch in BATCHES}
    found |= {f"connections={count}": replace(base, connections=count) for count in CONNECTIONS}
    return found | {f"partitions={count}": replace(base, partitions=count) for count in PARTITIONS[kind.store]}

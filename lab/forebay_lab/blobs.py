"""Recorded messages as blobs in Kafka, in Cassandra and in plain files: on a disk, on Forebay in front of it, on flash.

Blobs of 100 B to 5 MB are loaded in batches over several connections, and one parameter at a time is varied. A row is
a store on a back end, its points are samples: servers take long to start.

- *messages/s acknowledged*: as the store promises it. Kafka and Cassandra acknowledge what the page cache has; the
  points and kinds called `sync`, and plain files, only what is durable.
- *messages/s stored*: until everything is durable in files: what was still in memory is flushed and counts.
- *bytes a message*: what the files of all copies take of the disk.

Every blob of a smoke run is read back and compared byte for byte, of longer runs a part; the kernel is told to forget
the files before. A store that fails at a point (a time-out) has no figures there, and its error is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from . import blob_stores, java, servers, stack
from .blob_grid import KINDS, LENGTHS, Kind, Length, Point, points
from .blob_plots import pictures
from .experiment import Binary, Measured, Original, Picture, Refused, Results, Row, Scale, Work

# Roughly: from the start of a server to its end, and to make and delete what a point needs.
START_S = {"files": 2, "kafka": 12, "cassandra": 30}
MAKE_S = {"files": 0.2, "kafka": 1, "cassandra": 12}
# A store on a slow disk may need this long for what it has promised.
PATIENCE_S = 900


@dataclass(frozen=True)
class Blobs:
    """The experiment."""

    name: str = "blobs"
    title: str = (
        f"Recorded messages in Kafka {java.version('kafka', 'kafka_2.13')}, "
        f"Cassandra {java.version('cassandra', 'cassandra-all')} and plain files"
    )
    warm_up: str = (
        "the base point is loaded once before it is measured; a point begins with an empty topic, table or folder"
    )

    def needs(self) -> Sequence[str]:
        return [*java.NEEDS, "sync", *stack.needs(stack.Store.FOREBAY)]

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FOREBAY]

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        rows = []
        for kind, backend in length.rows:
            setup, count = KINDS[kind], len(points(kind, scale)) + 1
            seconds = START_S[setup.store] * setup.servers + count * (MAKE_S[setup.store] + length.point_s)
            rows.append(Row(f"{kind}-{backend}", seconds, {"kind": kind, "backend": backend, "scale": scale.value}))
        return rows

    def measure(self, row: Row, work: Work) -> Measured:
        scale, name = Scale(str(row.parameters["scale"])), str(row.parameters["kind"])
        length, kind = LENGTHS[scale], KINDS[name]
        stack.check_room(work.folder, length.image_mib + length.cache_mib)
        image = work.folder / "image"
        stack.format_image(image, length.image_mib, "xfs", work)
        began = time.monotonic()
        lines = []
        with stack.mounted(backend(row, length), image, work) as disk:
            data = disk.path / "data"
            data.mkdir()
            with blob_stores.loader(kind, data, work) as program:
                run, wanted = Run(kind, data, program, length), points(name, scale)
                if scale is not Scale.SMOKE:
                    measure(run, "warm", wanted["base"])
                for number, (what, point) in enumerate(wanted.items()):
                    line = measure(run, f"p{number}", point)
                    if "failed" in line and scale is Scale.SMOKE:
                        raise Refused(f"{row.name}, {what}: {line['failed']}")
                    lines.append({"point": what, **asdict(point), **line})
                    work.progress(time.monotonic() - began)
        return Measured(pd.DataFrame(lines), summary(lines))

    def table(self, results: Results) -> pd.DataFrame:
        return table(results)

    def pictures(self, results: Results) -> Sequence[Picture]:
        return pictures(results)

    def originals(self) -> Sequence[Original]:
        return ORIGINALS


def backend(row: Row, length: Length) -> stack.Backend:
    """What the row's files are on."""
    store = stack.Store(str(row.parameters["backend"]))
    return stack.Backend(store, cache_mib=length.cache_mib if store is stack.Store.FOREBAY else 0)


@dataclass(frozen=True)
class Run:
    """A store that is ready to be loaded."""

    kind: Kind
    data: Path
    program: java.Program
    length: Length


def measure(run: Run, name: str, point: Point) -> dict[str, float | str]:
    """One point: load, make durable, look at the space, read back, delete."""
    length = run.length
    blobs = max(1, min(length.blobs, length.point_bytes // point.size))
    words: dict[str, str | float] = {"do": "load", "name": name, **asdict(point)}
    words |= {"blobs": blobs, "seconds": length.point_s}
    found = run.program.ask(words, PATIENCE_S)
    if "failed" in found:
        run.program.ask({"do": "drop"}, PATIENCE_S)
        return {"failed": str(found["failed"])}
    flush_s = flush(run)
    files = blob_stores.folders(run.kind, run.data, name)
    taken = blob_stores.disk_bytes(files)
    blob_stores.forget(files)
    verified = run.program.ask({"do": "verify", "bytes": length.verified_bytes}, PATIENCE_S)
    run.program.ask({"do": "drop"}, PATIENCE_S)
    written, load_s = float(found["blobs"] or 0), float(found["seconds"] or 0)
    return {
        "blobs": written,
        "load_s": round(load_s, 3),
        "flush_s": round(flush_s, 3),
        "per_s": round(written / load_s, 2),
        "stored_per_s": round(written / (load_s + flush_s), 2),
        "bytes_per_blob": round(taken / written, 1),
        "batch_p50_ms": round(float(found["batch_p50_ms"] or 0), 3),
        "batch_p99_ms": round(float(found["batch_p99_ms"] or 0), 3),
        "verified": float(verified["verified"] or 0),
    }


def flush(run: Run) -> float:
    """Brings everything from the memory of store and kernel to the disk; returns how many seconds that took."""
    began = time.monotonic()
    run.program.ask({"do": "flush"}, PATIENCE_S)
    servers.run(["sync", "-f", str(run.data)], limit_s=PATIENCE_S)
    return time.monotonic() - began


def summary(lines: Sequence[Mapping[str, object]]) -> dict[str, float | str]:
    """Of a row: its base point."""
    base = lines[0]
    if "failed" in base:
        return {"failed": str(base["failed"])}
    return {name: float(str(base[name])) for name in ("per_s", "stored_per_s", "bytes_per_blob", "verified")}


def table(results: Results) -> pd.DataFrame:
    """A line for each store and point: ratios of Forebay to disk and flash first, then messages/s and space."""
    by_kind: dict[str, dict[str, pd.DataFrame]] = {}
    for row in results.rows:
        frame = results.samples[row.name].set_index("point")
        by_kind.setdefault(str(row.parameters["kind"]), {})[str(row.parameters["backend"])] = frame
    lines = []
    for kind, frames in by_kind.items():
        for point in dict.fromkeys(point for frame in frames.values() for point in frame.index):
            found = {backend: frame.loc[point] for backend, frame in frames.items() if point in frame.index}
            lines.append(line(f"{kind} {point}", found))
    return pd.DataFrame(lines)


def line(name: str, found: Mapping[str, pd.Series]) -> dict[str, object]:
    """One line: `found` has a sample for each back end."""

    def value(backend: str, what: str) -> float | None:
        sample = found.get(backend)
        number = None if sample is None else sample.get(what)
        return None if number is None or pd.isna(number) else float(number)

    said: dict[str, object] = {"store, point": name}
    for peer in ("disk", "raw"):
        ours, theirs = value("forebay", "stored_per_s"), value(peer, "stored_per_s")
        said[f"stored, Forebay / {peer}"] = f"{ours / theirs:.2f}" if ours and theirs else "-"
    for what, key in (("acknowledged/s", "per_s"), ("stored/s", "stored_per_s")):
        for backend in ("disk", "forebay", "raw"):
            number = value(backend, key)
            said[f"{what} {backend}"] = "-" if number is None else f"{number:,.0f}"
    spaces = [space for backend in found if (space := value(backend, "bytes_per_blob")) is not None]
    said["bytes a message"] = f"{spaces[0]:,.0f}" if spaces else "failed"
    return said


ORIGINALS = [
    Original(
        "Cassandra on two nodes, 10 Gbit/s, 2014: thousands of messages/s (two copies unless said)",
        pd.DataFrame(
            [
                (
                    "batch 128 / 256 / 512 / 1024 / 8196 / 32768",
                    "67.1 / 63.9 / 55.4 / 55.8 / 23.5 / time-out",
                    "15.6 / 20.6 / 20.3 / 19.4 / 5.5 / -",
                ),
                ("connections 1 / 2 / 4 / 8 / 24", "27 / 53 / 75 / 62 / 62", "17.9 / 31 / 42 / 40 / -"),
                ("partitions 1 / 8 / 64", "58 / 71 / 70", "-"),
                ("consistency ANY / ONE / TWO", "67 / 66 / 66", "-"),
                ("copies 1 / 2", "121 / 72", "-"),
                ("long run, 1 billion, copies 1 / 2", "121 / 63", "-"),
            ],
            columns=["varied", "100 B", "1 KB"],
        ),
    ),
    Original(
        "Cassandra, larger messages",
        pd.DataFrame(
            [
                ("5 KB, connections 1 / 2 / 4 / 8", "9,000 / 14,600 / 16,000 / 10,300 a second"),
                ("10 KB, copies 1 / 2", "19,200 / 8,200 a second"),
                ("20 KB, connections 1 / 2 / 4", "3,300 / 4,500 / 3,800 a second"),
                ("500 KB", "90 a second"),
                ("5 MB", "9.5 a second"),
                ("space of a message of 100 B, compressed", "89 B"),
            ],
            columns=["what", "figure"],
        ),
    ),
    Original(
        "Kafka 0.8 on the same nodes: thousands of messages/s",
        pd.DataFrame(
            [
                ("batch 128 / 256 / 512 / 1024 / 32768, 100 B", "392 / 432 / 433 / 495 / 396"),
                ("for each connection, of 1 / 2 / 4 / 8 / 16 / 32, 100 B", "84 / 74 / 62 / 58 / 37 / 17"),
                ("partitions 1 / 2 / 4 / 8, 100 B", "535 / 457 / 493 / 284"),
                ("copies 1 / 2, 100 B", "577 / 536"),
                ("long run, 150 GB", "490"),
                ("20 KB", "6 to 9"),
                ("500 KB", "0.314"),
                ("space of a message of 100 B", "183 B"),
            ],
            columns=["varied", "figure"],
        ),
    ),
]

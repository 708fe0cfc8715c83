"""How long a message waits for its acknowledgement, from one connection to a hundred and from idle to full load.

The message is a write to Forebay's NBD export, acknowledged when the cache has it (or, with FUA, when it is durable
there); beside it stand the export alone, with no storage behind it, and Kryonet, a library for messages over TCP,
whose server sends each message back.

- One client measures all of them (`lab/java`, class `Load`): one message under way on each connection, first in a
  closed loop, then at rates that are shares of what the closed loop reached. A message that becomes due while the one
  before is under way counts from when it was due, so that a slow server cannot hide its queue.
- The same export measured by fio (`forebay-fio`) shows what the client adds. fio counts from when it sends: with a rate
  it leaves out what waited for its turn.
- NBD takes any length, but what the engine stores are sectors: messages are rounded up to 512 bytes there.
- Everything is verified: each echo against its message, and of each NBD connection the newest messages by reading them
  back. The null export keeps nothing, and fio is not asked to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pandas as pd

from . import java
from .experiment import Binary, Measured, Original, Picture, Results, Row, Scale, Work
from .latency_plots import MEASURES, pictures
from .latency_targets import KRYONET, SERVE, TARGETS, Client, Fio, Point, load

SIZES = (48, 512, 3216, 4096, 16384)
CONNECTIONS = (1, 10, 50, 100)


@dataclass(frozen=True)
class Length:
    """What is measured at a scale. `loads` are in percent of the closed loop, and only of the sizes in `loaded`."""

    warm_s: float
    point_s: float
    points: Sequence[tuple[str, int, int]]
    loads: Sequence[int]
    loaded: Sequence[int]


def grid(targets: Sequence[str], sizes: Sequence[int], connections: Sequence[int]) -> list[tuple[str, int, int]]:
    """Every combination; those that are compared with each other are measured one after the other."""
    return [(target, size, count) for size in sizes for count in connections for target in targets]


PAIR = (KRYONET, "forebay-unix")
LENGTHS = {
    Scale.SMOKE: Length(0.2, 0.4, grid(list(TARGETS), (48,), (2,)), (50,), (48,)),
    Scale.QUICK: Length(
        1.2, 1.0, grid(PAIR, (48,), (1,)) + grid([*PAIR, "forebay-fua", "null-unix"], (48,), (10,)), (20, 80), (48,)
    ),
    Scale.FULL: Length(5, 5, grid(list(TARGETS), SIZES, CONNECTIONS), (10, 25, 50, 75, 90, 100), (48, 3216)),
}


@dataclass(frozen=True)
class Latency:
    """The experiment."""

    name: str = "latency"
    title: str = f"Acknowledge latency beside Kryonet {java.version('echo', 'kryonet')}"
    warm_up: str = (
        "a closed loop at the beginning of each row, in which the Java programs are compiled, "
        "and the first tenth of each point"
    )

    def needs(self) -> Sequence[str]:
        return [*java.NEEDS, "fio"]

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FOREBAY, Binary.NULL]

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        rows = []
        for target, size, connections in length.points:
            loads = length.loads if size in length.loaded else ()
            seconds = 1.5 + length.warm_s + (1 + len(loads)) * length.point_s * 1.15
            parameters: dict[str, float | str] = {
                "target": target,
                "size": size,
                "connections": connections,
                "loads": " ".join(str(load) for load in loads),
                "warm_s": length.warm_s,
                "point_s": length.point_s,
            }
            rows.append(Row(f"{target}-{size:05}-{connections:03}", seconds, parameters))
        return rows

    def measure(self, row: Row, work: Work) -> Measured:
        said = row.parameters
        point = Point(TARGETS[str(said["target"])], int(said["size"]), int(said["connections"]))
        with ExitStack() as stack:
            uri = stack.enter_context(SERVE[point.target.server](point, work))
            client: Client = Fio(uri, point) if point.target.by_fio else stack.enter_context(load(uri, point, work))
            lines = measure(client, row, work)
            verified = client.verify()
        closed = lines[0]
        summary: dict[str, float | str] = {"sent_bytes": point.sent, "verified": verified}
        summary |= {name: closed[name] for name in ("per_s", "mean_us", "p50_us", "p99_us", "max_us")}
        return Measured(pd.DataFrame(lines), summary)

    def table(self, results: Results) -> pd.DataFrame:
        lines = []
        for row in results.rows:
            said = row.parameters
            peer = results.summaries.get(f"{KRYONET}-{int(said['size']):05}-{int(said['connections']):03}")
            lines.append(line(row, results.summaries[row.name], results.samples[row.name], peer))
        return pd.DataFrame(lines)

    def pictures(self, results: Results) -> Sequence[Picture]:
        return pictures(results)

    def originals(self) -> Sequence[Original]:
        return [
            Original(
                "Kryonet on a network of 2014: round trip in us, a range where load rose or runs differed", PUBLISHED
            )
        ]


PUBLISHED = pd.DataFrame(
    [
        ("48 B", "1", "190-241", "160-180", "5,400-19,300"),
        ("3,216 B", "1", "316-332", "313", "650"),
        ("48 B", "10, one port", "256 to 23,000", "254 to 23,000", "9,000 to 80,000"),
        ("48 B", "10-100, a port each", "424-3,120", "160-518", "54,000-231,000"),
        ("3,216 B", "10-50, a port each", "380-535", "327-415", "21,000-78,000"),
    ],
    columns=["message", "connections", "mean us", "median us", "messages/s"],
)


def measure(client: Client, row: Row, work: Work) -> list[dict[str, float]]:
    """The closed loop, then the loads; a line for each."""
    began = time.monotonic()
    point_s = float(row.parameters["point_s"])
    closed = client.measure(0, float(row.parameters["warm_s"]), point_s)
    lines = [{"load_percent": 0, "offered_per_s": 0, **closed}]
    for load_percent in [int(word) for word in str(row.parameters["loads"]).split()]:
        work.progress(time.monotonic() - began)
        rate = closed["per_s"] * load_percent / 100
        found = client.measure(rate, point_s / 10, point_s)
        lines.append({"load_percent": load_percent, "offered_per_s": round(rate, 1), **found})
    return lines


def line(
    row: Row, summary: Mapping[str, float | str], samples: pd.DataFrame, peer: Mapping[str, float | str] | None
) -> dict[str, object]:
    """A line of the table: ratios to Kryonet in the closed loop, then the figures, then the highest load below all.

    At all of it the times say only how long the load lasted.
    """
    said: dict[str, object] = {"row": row.name}
    for what, key in (("rate", "per_s"), *MEASURES):
        ratio = float(summary[key]) / float(peer[key]) if peer and float(peer[key]) else None
        said[f"{what} / Kryonet"] = "-" if ratio is None else f"{ratio:.2f}"
    said["bytes sent"] = summary["sent_bytes"]
    said["messages/s"] = round(float(summary["per_s"]))
    said["us: mean, median, p99"] = times(summary)
    loaded = [{str(key): float(value) for key, value in one.items()} for one in samples.to_dict("records")]
    loaded = [one for one in loaded if one["load_percent"] > 0]
    loaded = [one for one in loaded if one["load_percent"] < 100] or loaded
    said["at load"] = f"{loaded[-1]['load_percent']:.0f} %" if loaded else "-"
    said["us there"] = times(loaded[-1]) if loaded else "-"
    grows = len(loaded) > 1
    said["median, loaded / idle"] = f"{loaded[-1]['p50_us'] / loaded[0]['p50_us']:.1f}" if grows else "-"
    return said


def times(found: Mapping[str, float | str] | Mapping[str, float]) -> str:
    """Mean, median and 99th percentile in microseconds."""
    return ", ".join(f"{float(found[key]):,.0f}" for _, key in MEASURES)

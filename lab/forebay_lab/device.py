"""What a flash device does by itself: the published measurements of cards, on any file or block device.

- *sweep*: 16 KiB random and sequential, over threads that wait for each request (sync) and over depths of one that does
  not (async): throughput, and the latency that 95 % keep.
- *warm-up*: random writes until they have settled.
- *full*: random writes over so much of the device, all of which was written before: the device has as much room to work
  with as it keeps by itself, and what is left.

Everything is written before it is read (a device answers reads of what was never written from nothing), and a pass with
checksums shows that what is read back is what was written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from . import fio
from .cards import CARDS, FILLS, WHAT
from .experiment import Binary, Measured, Original, Picture, Refused, Results, Row, Scale, Work
from .plots import curves, figure, finish
from .steady import steady_from

MIB = 1 << 20
BLOCK_KIB = 16
PATTERNS = ("randread", "randwrite", "read", "write")


@dataclass(frozen=True)
class Length:
    """How much is measured at a scale."""

    mib: int
    point_s: int
    warm_up_s: int
    threads: Sequence[int]
    depths: Sequence[int]
    fills: Sequence[int]


LENGTHS = {
    Scale.SMOKE: Length(16, 1, 6, (1, 4), (8,), (50, 100)),
    Scale.QUICK: Length(256, 1, 15, (1, 4, 16), (1, 8, 32), (20, 60, 100)),
    Scale.FULL: Length(4096, 30, 2700, (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32, 64, 128), FILLS),
}


@dataclass(frozen=True)
class Device:
    """The experiment, on a folder (a file is made in it) or a block device (its first part is used)."""

    target: Path
    name: str = "device"
    title: str = "Flash by itself"
    warm_up: str = "each point after the device was written as a whole; the warm-up itself is a row"

    def needs(self) -> Sequence[str]:
        return ["fio"]

    def binaries(self) -> Sequence[Binary]:
        return []

    def rows(self, scale: Scale) -> Sequence[Row]:
        length = LENGTHS[scale]
        written_s = length.mib / 200
        size: dict[str, float | str] = {"mib": length.mib}
        rows = [Row("verify", 2 * written_s, size)]
        for pattern in PATTERNS:
            for how, counts in (("sync", length.threads), ("async", length.depths)):
                for count in counts:
                    point = {**size, "pattern": pattern, "how": how, "count": count, "seconds": length.point_s}
                    rows.append(Row(f"{pattern}-{how}-{count:03}", written_s + length.point_s, point))
        rows.append(Row("warm-up", written_s + length.warm_up_s, {**size, "seconds": length.warm_up_s}))
        for full in length.fills:
            rows.append(
                Row(f"full-{full:03}", written_s + length.point_s, {**size, "full": full, "seconds": length.point_s})
            )
        return rows

    def measure(self, row: Row, work: Work) -> Measured:
        path, size = self.place(int(row.parameters["mib"]), work)
        bench = Bench(path, size, work)
        if row.name == "verify":
            return bench.verify()
        full = int(row.parameters.get("full", 100))
        bench.fill(size * full // 100)
        seconds = int(row.parameters["seconds"])
        pattern = str(row.parameters.get("pattern", "randwrite"))
        how, count = str(row.parameters.get("how", "async")), int(row.parameters.get("count", 32))
        return bench.point(pattern, how, count, size * full // 100, seconds)

    def place(self, mib: int, work: Work) -> tuple[Path, int]:
        """What is measured, and its size in bytes."""
        mode = self.target.stat().st_mode if self.target.exists() else 0
        if stat.S_ISBLK(mode):
            with self.target.open("rb") as device:
                return self.target, min(os.lseek(device.fileno(), 0, os.SEEK_END), mib * MIB) // MIB * MIB
        path = work.folder / "file"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, mib * MIB)
        return path, mib * MIB

    def table(self, results: Results) -> pd.DataFrame:
        points = [(row, results.summaries[row.name]) for row in results.rows if "mib_s" in results.summaries[row.name]]
        return pd.DataFrame(
            [
                {
                    "row": row.name,
                    "MiB/s": summary["mib_s"],
                    "p95 ms": round(float(summary["p95_us"]) / 1000, 3),
                    "p99 ms": round(float(summary["p99_us"]) / 1000, 3),
                    "max ms": round(float(summary["max_us"]) / 1000, 1),
                }
                for row, summary in points
            ]
        )

    def pictures(self, results: Results) -> Sequence[Picture]:
        return [
            *self.sweeps(results, "sync", "threads"),
            *self.sweeps(results, "async", "depth"),
            *self.warmed_up(results),
            *self.by_fill(results),
        ]

    def sweeps(self, results: Results, how: str, count: str) -> Sequence[Picture]:
        """Throughput and p95 over threads or depth."""
        rows = [row for row in results.rows if row.parameters.get("how") == how]
        if not rows:
            return []
        drawn, (left, right) = figure(2)
        for pattern in PATTERNS:
            mine = [row for row in rows if row.parameters["pattern"] == pattern]
            counts = [float(row.parameters["count"]) for row in mine]
            sums = [results.summaries[row.name] for row in mine]
            curves(left, counts, [float(one["mib_s"]) for one in sums], pattern)
            curves(right, counts, [float(one["p95_us"]) / 1000 for one in sums], pattern)
        for axes, what in ((left, "MiB/s"), (right, "p95, ms")):
            finish(axes, count, what, doubling=True)
        return [Picture(f"sweep-{how}", f"{BLOCK_KIB} KiB, {how}", drawn)]

    def warmed_up(self, results: Results) -> Sequence[Picture]:
        """Random writes over time, and from when on they are steady."""
        if "warm-up" not in results.samples:
            return []
        frame = results.samples["warm-up"]
        drawn, (axes,) = figure(1)
        axes.plot(frame["t_s"], frame["mib_s"])
        since = results.summaries["warm-up"]["steady_s"]
        if since != "never":
            axes.axvline(float(since), linestyle="--", color="grey", label=f"steady from {since} s on")
        finish(axes, "s", "MiB/s")
        return [Picture("warm-up", "Random writes until they settle", drawn)]

    def by_fill(self, results: Results) -> Sequence[Picture]:
        """Random writes by how full the device is, beside the cards, each relative to its emptiest."""
        rows = [row for row in results.rows if "full" in row.parameters]
        if not rows:
            return []
        drawn, (axes,) = figure(1)
        ours = [float(results.summaries[row.name]["mib_s"]) for row in rows]
        curves(axes, [float(row.parameters["full"]) for row in rows], [one / (ours[0] or 1) for one in ours], "here")
        for card in CARDS.columns[1:]:
            curves(axes, CARDS["used %"].tolist(), (CARDS[card] / CARDS[card].iloc[0]).tolist(), card)
        finish(axes, "used %", "random writes, relative to the emptiest")
        return [Picture("full", "How full the device is", drawn)]

    def originals(self) -> Sequence[Original]:
        return [Original(WHAT, CARDS)]


@dataclass(frozen=True)
class Bench:
    """Jobs on one file or device."""

    path: Path
    size: int
    work: Work

    def job(self, progress: Callable[[float], None], **options: str | int) -> fio.Job:
        base: dict[str, str | int] = {
            "filename": str(self.path),
            "direct": 1,
            "bs": f"{BLOCK_KIB}k",
            "ioengine": "io_uring",
            "group_reporting": 1,
            "randrepeat": 0,
            "norandommap": 1,
        }
        return fio.run(base | options, self.work.folder, self.work.ledger, progress)

    def fill(self, size: int) -> None:
        """Writes everything once, from the front to the back."""
        self.job(lambda _: None, rw="write", bs="1m", iodepth=8, size=size, end_fsync=1)

    def verify(self) -> Measured:
        """Writes in random order with checksums and reads them back; ends with `Lies` if they are not right."""
        job = self.job(
            self.work.progress, rw="randwrite", iodepth=16, size=self.size, norandommap=0, verify="crc32c", do_verify=1
        )
        return Measured(job.samples, {"verified_mib": job.totals.bytes // MIB})

    def point(self, pattern: str, how: str, count: int, size: int, seconds: int) -> Measured:
        """One point of a curve."""
        many: dict[str, str | int] = (
            {"ioengine": "psync", "numjobs": count, "thread": 1} if how == "sync" else {"iodepth": count}
        )
        job = self.job(self.work.progress, rw=pattern, size=size, time_based=1, runtime=seconds, **many)
        totals = job.totals
        per_round = max(1, seconds // 50)
        since = steady_from(job.samples["mib_s"].tolist(), per_round)
        return Measured(
            job.samples,
            {
                "mib_s": round(totals.mib_s, 2),
                "mean_us": round(totals.mean_us, 1),
                "p95_us": totals.p95_us,
                "p99_us": totals.p99_us,
                "max_us": totals.max_us,
                "steady_s": "never" if since is None else int(job.samples["t_s"].iloc[since]),
            },
        )


def on(target: Path, *, destroy: bool) -> Device:
    """The experiment on what somebody has named.

    Raises `Refused` for a block device that is in use or that nobody allowed to be written over, and for files.
    """
    if not target.exists():
        raise Refused(f"{target} does not exist: name a folder (a file is made in it) or a block device")
    mode = target.stat().st_mode
    if stat.S_ISDIR(mode):
        return Device(target)
    if not stat.S_ISBLK(mode):
        raise Refused(f"{target} is a file: name its folder, a file of its own is made there")
    try:
        # The kernel knows every use: mounted, or a part of it, as swap, below RAID, LVM or a loop device.
        os.close(os.open(target, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        raise Refused(
            f"{target} cannot be had alone ({error.strerror}): is it, or a partition of it, in use?"
        ) from None
    if not destroy:
        raise Refused(f"everything on {target} will be written over: say so with --destroy-data")
    return Device(target)

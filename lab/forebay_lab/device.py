"""What a flash device does by itself: the published measurements of cards, on any file or block device.

- *sweep*: 16 KiB random and sequential, over threads that wait for each request (sync) and over depths of one that does
  not (async): throughput, and the latency that 95 % keep.
- *warm-up*: random writes until they have settled.
- *full*, of block devices: the whole device is discarded, so much of it is written, and random writes go over that: it
  has as much room to work with as it keeps by itself, and what is left. (A file says nothing of that: the device has
  the rest of the file system to work with.)

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

from . import fio, servers
from .cards import CARDS, FILLS, WHAT
from .experiment import Binary, Measured, Original, Picture, Refused, Results, Row, Scale, Work
from .plots import curves, figure, finish
from .steady import steady_from

MIB = 1 << 20
BLOCK_KIB = 16
SEQUENTIAL = ("read", "write")
PATTERNS = ("randread", "randwrite", *SEQUENTIAL)


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
        return ["fio", "blkdiscard"]

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
        if self.is_block_device:
            whole = self.size_bytes // MIB
            for full in length.fills:
                point = {"mib": whole, "full": full, "seconds": 4 * length.point_s}
                rows.append(Row(f"full-{full:03}", whole * full / 100 / 200 + 4 * length.point_s, point))
        return rows

    @property
    def is_block_device(self) -> bool:
        """Rather than a folder."""
        return self.target.exists() and stat.S_ISBLK(self.target.stat().st_mode)

    @property
    def size_bytes(self) -> int:
        """Of the block device."""
        with self.target.open("rb") as device:
            return os.lseek(device.fileno(), 0, os.SEEK_END)

    def measure(self, row: Row, work: Work) -> Measured:
        path, size = self.place(int(row.parameters["mib"]), work)
        bench = Bench(path, size, work)
        if row.name == "verify":
            return bench.verify()
        seconds = int(row.parameters["seconds"])
        if "full" in row.parameters:
            discarded = bench.discard()
            used = max(MIB, size * int(row.parameters["full"]) // 100 // MIB * MIB)
            bench.fill(used)
            measured = bench.settled(used, seconds)
            return Measured(measured.samples, {**measured.summary, "discarded": discarded})
        bench.fill(size)
        if row.name == "warm-up":
            return bench.settled(size, seconds)
        pattern, how, count = (row.parameters[name] for name in ("pattern", "how", "count"))
        return bench.point(str(pattern), str(how), int(count), size, seconds)

    def place(self, mib: int, work: Work) -> tuple[Path, int]:
        """What is measured, and its size in bytes."""
        if self.is_block_device:
            return self.target, min(self.size_bytes, mib * MIB) // MIB * MIB
        path = work.folder / "file"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, mib * MIB)
        return path, mib * MIB

    def table(self, results: Results) -> pd.DataFrame:
        points = [(row, results.summaries[row.name]) for row in results.rows if "mib_s" in results.summaries[row.name]]
        speeds: dict[str, list[float]] = {}
        for row, summary in points:
            speeds.setdefault(pattern_of(row), []).append(float(summary["mib_s"]))
        return pd.DataFrame(
            [
                {
                    "row": row.name + (", not discarded" if summary.get("discarded") == "no" else ""),
                    "to its best": f"{float(summary['mib_s']) / (max(speeds[pattern_of(row)]) or 1):.2f}",
                    "MiB/s": summary["mib_s"],
                    "IOPS": round(float(summary["mib_s"]) * 1024 / BLOCK_KIB),
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


def pattern_of(row: Row) -> str:
    """What a row does; all but the sweeps write at random."""
    return str(row.parameters.get("pattern", "randwrite"))


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

    def discard(self) -> str:
        """Tells the device that nothing on it counts; `no` if it cannot be told."""
        try:
            servers.run(["blkdiscard", "--force", str(self.path)], limit_s=3600)
        except Refused:
            return "no"
        return "yes"

    def settled(self, size: int, seconds: int) -> Measured:
        """Random writes; what counts is what it does once it is steady, or the last half if it never is."""
        measured = self.point("randwrite", "async", 32, size, seconds)
        since, samples = measured.summary["steady_s"], measured.samples
        kept = samples[samples["t_s"] >= (seconds / 2 if since == "never" else float(since))]
        return Measured(samples, {**measured.summary, "mib_s": round(float(kept["mib_s"].mean()), 2)})

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
        if how == "sync" and pattern in SEQUENTIAL:
            # A part of its own for each, or all read and write the same blocks.
            size = max(BLOCK_KIB << 10, size // count >> 20 << 20)
            many |= {"offset_increment": size}
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

"""The same trace to a real volume on the emulated disk and to `forebay what-if`, for tests and by hand:

    FOREBAY=... python -m harness.what_if TRACE CACHE_SIZE [PACE...]

with a TRACE of 24-byte records (the format `bin`) prints the comparison; PACE is `--asap --depth 4` if left out."""

import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .daemon import RunVolume

RECORD = "<QQII"
PACE = ("--asap", "--depth", "4")
# The cache device is memory, or a file that is in it.
FLASH = ("--flash-read", "10us", "--flash-write", "10us", "--flash-flush", "20us")
VOLUME_MIN = 384 << 20
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Comparison:
    real_hit_pct: float
    modelled_hit_pct: float
    # Of all requests: modelled to real.
    mean_ratio: float
    text: str


def make_trace(path: Path, requests: int) -> Path:
    """Skewed, a third of it writes, 4 to 16 KiB, over 384 MiB."""
    chance = random.Random(7)
    with path.open("wb") as out:
        for at in range(requests):
            first = int(98000 * chance.random() ** 4) * 7919 % 98000
            out.write(struct.pack(RECORD, at * 12_000_000, first, chance.choice((1, 1, 2, 4)), chance.random() < 0.3))
    return path


def volume_size(trace: Path) -> int:
    ends = ((first + blocks) * 4096 for _, first, blocks, _ in struct.iter_unpack(RECORD, trace.read_bytes()))
    return max(VOLUME_MIN, *ends)


def fast_folder(folder: Path) -> Path:
    """A folder in memory, if that is large enough: the devices must not be slower than their models."""
    large = SHM.is_dir() and shutil.disk_usage(SHM).free > 2 << 30
    return Path(tempfile.mkdtemp(prefix="forebay-e2e.", dir=SHM)) if large else folder


def compare(volume: RunVolume, trace: Path, pace: Sequence[str] = PACE) -> Comparison:
    """Both ways; every request was answered, without an error."""
    size = volume_size(trace)
    volume.make_backing(size)
    admin = volume.folder / "admin.sock"
    volume.start("--emulate", "hdd-7200", "--admin", admin)
    replay_words = ["trace", "replay", trace, "--to", volume.uri, "--write-anything", *pace]
    replay = volume.forebay.json(*replay_words, seconds=3600)
    stats = volume.forebay("stats", "vol", "--admin", admin, "--format", "json").json()
    volume.stop()
    model_words = ["what-if", "--trace", trace, "--volume-size", size, "--cache", volume.cache_size, *pace, *FLASH]
    (model,) = volume.forebay.json(*model_words, seconds=3600)["variants"]
    assert replay["errors"] == 0 and model["failed"] == 0, (replay, model)
    return judged(replay, stats, model)


def judged(replay: Any, stats: Any, model: Any) -> Comparison:
    hits = 100 * stats["read_hit_blocks"] / (stats["read_hit_blocks"] + stats["read_miss_blocks"])
    lines = [f"hits: {hits:.2f} % real, {model['hit_pct']:.2f} % modelled"]
    real_ns = modelled_ns = 0.0
    for operation in ("read", "write"):
        if operation in replay["operations"]:
            real, modelled = replay["operations"][operation]["replayed"], model[operation]
            assert real["count"] == modelled["count"], (real, modelled)
            means = real["mean_ns"], modelled["mean_ns"]
            lines.append(f"{operation}: mean {means[0] / 1e6:.2f} ms real, {means[1] / 1e6:.2f} ms modelled")
            real_ns += means[0] * real["count"]
            modelled_ns += means[1] * real["count"]
    ratio = modelled_ns / real_ns
    lines.append(f"mean of all, modelled to real: {ratio:.3f}")
    return Comparison(hits, model["hit_pct"], ratio, "\n".join(lines))


def main(trace: str, cache_size: str, *pace: str) -> None:
    folder = fast_folder(Path(tempfile.mkdtemp(prefix="forebay-e2e.")))
    volume = RunVolume(folder, "run", cache_size)
    try:
        print(compare(volume, Path(trace).absolute(), pace or PACE).text)
    finally:
        volume.clean_up()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

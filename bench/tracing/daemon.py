"""A trace over NBD into the daemon: what its own counters say afterwards.

The backing store is a sparse file in which the blocks of the trace hold their first content (`content`). The cache is
a new file with as many bytes as the engine has in virtual time, so segments and all other sizes are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness as h
from tracing import content
from tracing.records import BLOCK, Request, read, runs

BENCH = Path(__file__).resolve().parent.parent
# Blocks of the backing store that are written at once.
PIECE = 1024


@dataclass(frozen=True)
class Figures:
    """What a column shows. `written` is bytes written to the cache device for each that was filled or written.

    `no_room_pct` is the share of the missed blocks that were not filled because the log had no room at that moment.
    """

    misses_pct: float
    written: float
    no_room_pct: float


def figures(stats: dict[str, Any]) -> Figures:
    """From the counters of an engine; the same as in `crates/forebay-core/examples/traces`."""
    misses = stats["read_miss_blocks"]
    asked = stats["written_bytes"] + stats["filled_blocks"] * BLOCK
    return Figures(
        misses_pct=100 * misses / max(stats["read_hit_blocks"] + misses, 1),
        written=stats["cache_written_bytes"] / max(asked, 1),
        no_room_pct=100 * stats["fill_no_room_blocks"] / max(misses, 1),
    )


def python_with_libnbd() -> str:
    """A Python that can import libnbd's module: the distribution's packages are for its own one only."""
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        try:
            found = subprocess.run([python, "-c", "import nbd"], capture_output=True, check=False)
        except OSError:
            continue
        if found.returncode == 0:
            return python
    raise h.Failure("no Python here has the module nbd of libnbd: scripts/setup installs it (package python3-libnbd)")


def check_tools() -> None:
    """Refuses to begin what cannot end well."""
    python_with_libnbd()
    if not h.FOREBAY.exists():
        raise h.Failure(f"no binary at {h.FOREBAY}: make build, or set FOREBAY; --no-nbd does without it")


def prepare(disk: Path, requests: list[Request], volume_blocks: int) -> None:
    """The backing store: sparse, with the first content of each block that the trace uses."""
    with disk.open("wb") as file:
        file.truncate(volume_blocks * BLOCK)
        for first, count in runs(requests):
            for begin in range(first, first + count, PIECE):
                file.seek(begin * BLOCK)
                end = min(begin + PIECE, first + count)
                file.write(b"".join(content.block(number, 0) for number in range(begin, end)))
        file.flush()
        os.fsync(file.fileno())


def replay(trace: Path, sizes: dict[str, int], policy: str, depth: int, where: Path | None = None) -> Figures:
    """Replays a trace and returns what the daemon counted."""
    with h.workspace(where) as folder:
        prepare(folder / "disk", read(trace), sizes["volume_blocks"])
        socket, admin = folder / "forebay.sock", folder / "admin.sock"
        extra = ["--admin", str(admin), "--set", f"reclaim_policy={policy}"]
        command = h.forebay(folder, cache=f"{folder}/cache:{sizes['cache_blocks'] * BLOCK}B", extra=extra)
        with h.process(command, socket):
            client(trace, socket, depth)
            return figures(counters(admin))


def client(trace: Path, socket: Path, depth: int) -> dict[str, Any]:
    """Runs the client; returns what it did."""
    command = [python_with_libnbd(), "-m", "tracing.client", str(trace), str(socket), str(depth)]
    environment = os.environ | {"PYTHONPATH": str(BENCH), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise h.Failure(f"{trace.name} over NBD: {done.stderr.strip() or f'exit code {done.returncode}'}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counters(admin: Path) -> dict[str, Any]:
    """The counters of the daemon."""
    command = [str(h.FOREBAY), "stats", "--admin", str(admin), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise h.Failure(f"{' '.join(command)}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found

"""Random sequences of changes of a pool's devices, with a start between them; `size-sequences.sh` runs it.

A model says which changes must succeed. After each start, orderly or after kill -9, the pool is open on the devices
that the model has, the configuration names them, the daemon did not complain of a size that it had written itself,
and a reload finds nothing to change. The seed of a sequence is printed: it repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


class SequenceError(Exception):
    """A start or a change did not do what it must."""


@dataclass
class Daemon:
    """A daemon with one pool, and the volume that keeps it from being empty."""

    forebay: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    log: list[str] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "forebay.toml"

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [self.forebay, *words, "--admin", str(self.folder / "admin.sock")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.log.append(f"{' '.join(words)} -> {done.returncode} {done.stdout[-200:]}{done.stderr[-400:]}")
        return done

    def start(self, seconds: float) -> str:
        """Starts it and waits until it serves; gives what it said."""
        path = self.folder / "stderr"
        with path.open("wb") as out:
            command = [self.forebay, "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)
        until = time.monotonic() + seconds
        while "forebay: serving" not in path.read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SequenceError(f"not served: {path.read_text()}")
            time.sleep(0.02)
        return path.read_text()

    def end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None


def odd_size(draw: random.Random, least: int, most: int) -> int:
    """A size that is a multiple of a segment, of a block, of a sector, or of nothing."""
    unit = draw.choice([MIB, 64 << 10, 4096, 512, 1])
    return max(least, draw.randrange(least, most) // unit * unit)


def check(daemon: Daemon, said: str, devices: list[str], when: str) -> None:
    """What must hold after each start."""
    for wrong in ("as given", "opened without", "brought up to date", "not open", "cannot"):
        if wrong in said:
            raise SequenceError(f"{when}: a start said: {said}")
    shown = daemon.ask("pool", "show", "fast", "--json")
    if shown.returncode != 0:
        raise SequenceError(f"{when}: the pool is not there: {shown.stderr}")
    info = json.loads(shown.stdout)
    there = [device["path"] for device in info["devices"]]
    if there != devices:
        raise SequenceError(f"{when}: the pool lies on {there}, not on {devices}")
    entries = tomllib.loads(daemon.config.read_text())["pool"]["fast"]["devices"]
    listed = [entry if isinstance(entry, str) else entry["path"] for entry in entries]
    if listed != devices:
        raise SequenceError(f"{when}: the configuration names {listed}, not {devices}")
    before = daemon.config.read_text()
    reload = daemon.ask("reload")
    if reload.returncode != 0 or "pool fast" in reload.stdout or daemon.config.read_text() != before:
        raise SequenceError(f"{when}: a reload changes something: {reload.stdout}{reload.stderr}")
    volume = daemon.ask("volume", "show", "vol")
    if volume.returncode != 0:
        raise SequenceError(f"{when}: the volume is not there: {volume.stderr}")


class Sequence:
    """One sequence: what is asked of the daemon, and what must be true then."""

    def __init__(self, daemon: Daemon, draw: random.Random, blocks: list[str], seconds: float) -> None:
        self.daemon, self.draw, self.blocks, self.seconds = daemon, draw, blocks, seconds
        self.made = 0
        self.before: list[str] = []
        self.devices: list[str] = []
        with daemon.config.open("w") as file:
            file.write(f'[daemon]\nadmin_socket = "{daemon.folder}/admin.sock"\nstate_dir = "{daemon.folder}/state"\n')

    def create(self) -> None:
        """The daemon makes the pool, and writes it into its configuration."""
        path, size = self.spec(8 * MIB)
        self.must(
            "pool",
            "create",
            "fast",
            "--device",
            f"{path}:{size}" if size else path,
            "--force",
            *self.draw.choice([[], ["--set", "segment_size=64KiB"], ["--set", "segment_size=256KiB"]]),
        )
        backing, export = f"file:{self.daemon.folder}/vol.img", f"nbd+unix:///vol?socket={self.daemon.folder}/vol.sock"
        self.must("volume", "attach", "vol", "--pool", "fast", "--backing", backing, "--export", export)
        self.devices = [path]

    def must(self, *words: str) -> None:
        done = self.daemon.ask(*words)
        if done.returncode != 0:
            raise SequenceError(f"{' '.join(words)}: {done.stderr}")

    def spec(self, least: int) -> tuple[str, str]:
        """A device that is not used: a block device, or a new file with its size."""
        free = [path for path in self.blocks if path not in self.devices]
        if free and self.draw.random() < 0.4:
            path = self.draw.choice(free)
            subprocess.run(
                ["dd", "if=/dev/zero", f"of={path}", "bs=256K", "count=1", "conv=notrunc"],
                check=True,
                capture_output=True,
            )
            return path, self.draw.choice(["", f"{odd_size(self.draw, least, max(12 * MIB, 2 * least))}B"])
        self.made += 1
        path = str(self.daemon.folder / f"flash{self.made}.img")
        return path, f"{odd_size(self.draw, least, 3 * least)}B"

    def change(self) -> None:  # noqa: PLR0912 (one arm for each change)
        last, self.before = self.devices[-1], list(self.devices)
        kind = self.draw.choice(
            ["grow-size", "grow-max", "grow-device", "shrink-size", "shrink-device", "replace", "cut"]
        )
        if kind == "grow-device" and len(self.devices) < 4:
            path, size = self.spec(3 * MIB)
            done = self.daemon.ask("pool", "grow", "fast", "--device", f"{path}:{size}" if size else path, "--force")
            if done.returncode == 0:
                self.devices.append(path)
            elif "out of range" not in done.stderr:
                raise SequenceError(f"grow --device {path}:{size}: {done.stderr}")
        elif kind == "shrink-device" and len(self.devices) > 1:
            leaves = self.draw.choice(self.devices)
            done = self.daemon.ask("pool", "shrink", "fast", "--device", leaves)
            if done.returncode == 0:
                self.devices.remove(leaves)
                if leaves != last:
                    self.devices = [*self.devices[:-1]]
                    self.devices.insert(self.before.index(leaves), last)
            elif not any(word in done.stderr for word in ("out of range", "cannot be given up")):
                raise SequenceError(f"shrink --device {leaves}: {done.stdout}{done.stderr}")
        elif kind == "replace":
            at = self.draw.randrange(len(self.devices))
            path, size = self.spec(self.draw.choice([3, 8, 20]) * MIB)
            new = f"{path}:{size}" if size else path
            done = self.daemon.ask("pool", "replace", "fast", "--old", self.devices[at], "--device", new, "--force")
            if done.returncode == 0:
                self.devices[at] = path
            elif "too small" not in done.stderr:
                raise SequenceError(f"replace {self.devices[at]} by {new}: {done.stdout}{done.stderr}")
        elif kind in ("grow-size", "shrink-size"):
            word = kind.split("-")[0]
            self.daemon.ask("pool", word, "fast", "--size", f"{odd_size(self.draw, 2 * MIB, 40 * MIB)}B")
        elif kind == "grow-max":
            self.daemon.ask("pool", "grow", "fast", "--size", "max")
        elif kind == "cut" and Path(last).is_file():
            length = Path(last).stat().st_size
            os.truncate(last, length + odd_size(self.draw, 1, MIB))
            if self.daemon.ask("pool", "grow", "fast", "--size", "max").returncode != 0:
                os.truncate(last, length)  # as the daemon has written it

    def run(self, changes: int) -> None:
        self.daemon.start(self.seconds)
        self.create()
        for number in range(changes):
            self.change()
            if self.draw.random() < 0.6:
                self.daemon.end(self.draw.choice([signal.SIGTERM, signal.SIGKILL]))
                said = self.daemon.start(self.seconds)
                check(self.daemon, said, self.devices, f"after change {number}")
        self.daemon.end(signal.SIGTERM)


def main() -> None:
    """Runs sequences until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forebay", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=3)
    parser.add_argument("--changes", type=int, default=8)
    parser.add_argument("--ready-seconds", type=float, default=30)
    parser.add_argument("--block-device", action="append", default=[])
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.sequences):
        folder = options.folder / f"sequence-{seed}"
        folder.mkdir()
        with (folder / "vol.img").open("wb") as file:
            file.truncate(64 * MIB)
        daemon = Daemon(options.forebay, folder)
        sequence = Sequence(daemon, random.Random(seed), options.block_device, options.ready_seconds)
        try:
            sequence.run(options.changes)
        except SequenceError as error:
            print("\n".join(daemon.log))
            raise SystemExit(f"seed {seed}: {error}") from error
        finally:
            daemon.end(signal.SIGKILL)


if __name__ == "__main__":
    main()

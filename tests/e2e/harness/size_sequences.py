"""Random sequences of changes of a pool's devices, with a start between them. A model says which changes must
succeed."""

import os
import random
from pathlib import Path

from .command import Result
from .daemon import Daemon
from .devices import MIB, sparse
from .messages import check

# More segments, or more devices, than this cache can have.
TOO_MANY = ("pool.size", "pool.device-count", "cache.too-many-devices")
# Fewer segments than this cache can have, or the last device cannot take the place of the one that leaves.
NOT_SHRUNK = ("pool.size", "pool.replacement", "device.too-small")
KINDS = ["grow-size", "grow-max", "grow-device", "shrink-size", "shrink-device", "replace", "cut"]


def odd_size(draw: random.Random, least: int, most: int) -> int:
    """A size that is a multiple of a segment, of a block, of a sector, or of nothing."""
    unit = draw.choice([MIB, 64 << 10, 4096, 512, 1])
    return max(least, draw.randrange(least, most) // unit * unit)


class Sequence:
    """One sequence: what is asked of the daemon, and what must be true then."""

    def __init__(self, daemon: Daemon, seed: int, blocks: list[Path]) -> None:
        self.daemon, self.draw, self.blocks = daemon, random.Random(seed), blocks
        self.made = 0
        self.before: list[str] = []
        self.devices: list[str] = []
        sparse(daemon.folder / "vol.img", 64 * MIB)
        daemon.configure("")

    def run(self, changes: int) -> None:
        self.daemon.start()
        self.create()
        for number in range(changes):
            self.change()
            if self.draw.random() < 0.6:
                self.draw.choice([self.daemon.stop, self.daemon.kill])()
                self.daemon.start()
                self.check(f"after change {number}")
        self.daemon.stop()

    def create(self) -> None:
        """The daemon makes the pool, and writes it into its configuration."""
        path, size = self.spec(8 * MIB)
        segments = self.draw.choice([[], ["--set", "segment_size=64KiB"], ["--set", "segment_size=256KiB"]])
        self.daemon("pool", "create", "fast", "--device", joined(path, size), "--overwrite", *segments)
        backing = ["--backing", f"file:{self.daemon.folder}/vol.img", "--export", self.daemon.nbd()]
        self.daemon("volume", "attach", "vol", "--pool", "fast", *backing)
        self.devices = [path]

    def spec(self, least: int) -> tuple[str, str]:
        """A device that is not used: a block device, or a new file with its size."""
        free = [str(path) for path in self.blocks if str(path) not in self.devices]
        if free and self.draw.random() < 0.4:
            path = self.draw.choice(free)
            with Path(path).open("r+b") as device:
                device.write(bytes(256 << 10))
            return path, self.draw.choice(["", f"{odd_size(self.draw, least, max(12 * MIB, 2 * least))}B"])
        self.made += 1
        path = str(self.daemon.folder / f"flash{self.made}.img")
        return path, f"{odd_size(self.draw, least, 3 * least)}B"

    def ask(self, *words: str) -> Result:
        """A change that may be refused."""
        return self.daemon("pool", *words, ok=False)

    def change(self) -> None:
        self.before = list(self.devices)
        kind = self.draw.choice(KINDS)
        if kind == "grow-device" and len(self.devices) < 4:
            self.grow_by_device()
        elif kind == "shrink-device" and len(self.devices) > 1:
            self.shrink_by_device()
        elif kind == "replace":
            self.replace()
        elif kind in ("grow-size", "shrink-size"):
            self.ask(kind.split("-")[0], "fast", "--size", f"{odd_size(self.draw, 2 * MIB, 40 * MIB)}B")
        elif kind == "grow-max":
            self.ask("grow", "fast", "--size", "max")
        elif kind == "cut" and Path(self.devices[-1]).is_file():
            self.lengthen()

    def grow_by_device(self) -> None:
        path, size = self.spec(3 * MIB)
        done = self.ask("grow", "fast", "--device", joined(path, size), "--overwrite")
        if done.code == 0:
            self.devices.append(path)
        else:  # more segments than this cache can have
            check(TOO_MANY, done.messages, [], f"grow by {path} {size}")

    def shrink_by_device(self) -> None:
        last, leaves = self.devices[-1], self.draw.choice(self.devices)
        done = self.ask("shrink", "fast", "--device", leaves)
        if done.code != 0:  # fewer segments than this cache can have, or the last device cannot take its place
            check(NOT_SHRUNK, done.messages, [], f"shrink by {leaves}")
            return
        self.devices.remove(leaves)
        if leaves != last:
            self.devices = self.devices[:-1]
            self.devices.insert(self.before.index(leaves), last)

    def replace(self) -> None:
        at = self.draw.randrange(len(self.devices))
        path, size = self.spec(self.draw.choice([3, 8, 20]) * MIB)
        done = self.ask("replace", "fast", "--old", self.devices[at], "--device", joined(path, size), "--overwrite")
        if done.code == 0:
            self.devices[at] = path
        else:  # the new one is too small
            check("device.too-small", done.messages, [path], f"replace {self.devices[at]} by {path} {size}")

    def lengthen(self) -> None:
        """Somebody makes the last file longer."""
        last = self.devices[-1]
        length = Path(last).stat().st_size
        os.truncate(last, length + odd_size(self.draw, 1, MIB))
        if self.ask("grow", "fast", "--size", "max").code != 0:
            os.truncate(last, length)  # as the daemon has written it

    def check(self, when: str) -> None:
        """What must hold after each start."""
        daemon = self.daemon
        worries = [m for m in daemon.messages() if m.severity in ("warning", "error") and m.id != "backing.uncertain"]
        assert not worries, f"{when}: the daemon complains of what it has written itself: {worries}"
        assert not daemon.alarms(), f"{when}: {daemon.alarms()}"
        there = [device["path"] for device in daemon.pool("fast")["devices"]]
        assert there == self.devices, f"{when}: the pool lies on {there}, not on {self.devices}"
        entries = daemon.config()["pool"]["fast"]["devices"]
        listed = [entry if isinstance(entry, str) else entry["path"] for entry in entries]
        assert listed == self.devices, f"{when}: the configuration names {listed}, not {self.devices}"
        before = daemon.config_path.read_text()
        done = daemon.api.post("/v1/reload")
        assert done == {"changed": [], "refused": []}, f"{when}: a reload changes something: {done}"
        assert daemon.config_path.read_text() == before, f"{when}: a reload changes the configuration"
        assert daemon.volume("vol")["state"] == "serving", when


def joined(path: str, size: str) -> str:
    return f"{path}:{size}" if size else path

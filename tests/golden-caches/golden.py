#!/usr/bin/env python3
"""Caches of an older daemon, as files: makes them, and proves that a daemon of today still opens them.

    golden.py make OLD-FOREBAY [KIND...]   writes KIND.tar.xz beside this file
    golden.py open FOREBAY [KIND...]       opens each: check, start, every byte, write back, stop, check

Each archive has the cache devices, the backing stores, the configuration, the state directory, and `golden.json`: what
clients had been told to be written when the old daemon ended. Requests are made one after the other, so that is exact.
`@T@` in the configuration and in the state directory stands for the folder. Standard library only."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from harness.nbd import FLAG_FUA, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES, Client  # noqa: E402

SECTOR, BLOCK, STORE = 512, 4096, 1 << 20
CACHE = "4MiB"
# Nothing is written back before somebody asks for it.
QUIET = 'idle_delay = "off"\ndirty_low_pct = 80\ndirty_high_pct = 80\n'
PLACE = "@T@"


def pattern(stamp: int, offset: int, length: int) -> bytes:
    """Sectors that say who wrote them, and which they are."""
    sectors = range(offset // SECTOR, (offset + length) // SECTOR)
    return b"".join(struct.pack("<QQ", stamp, sector) * (SECTOR // 16) for sector in sectors)


@dataclass
class Volume:
    """What a volume must hold, whatever its cache has of it."""

    store: str
    attached: bool = True
    dirty_bytes: int = 0
    # Offset and length of what nothing has any more.
    lost: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Golden:
    """`golden.json`."""

    devices: list[str]
    key: str | None
    volumes: dict[str, Volume]
    # Exit code of `forebay check` of the old daemon.
    check: int = 0
    # Modification times of the stores, which the daemon compares.
    mtimes_ns: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Golden:
        found = json.loads(path.read_text())
        found["volumes"] = {name: Volume(**volume) for name, volume in found["volumes"].items()}
        return cls(**found)


class Failure(Exception):
    """Something that is not as it must be."""


class World:
    """A folder with a pool called `fast`, its daemon, and clients of its volumes."""

    def __init__(self, folder: Path, binary: Path) -> None:
        self.folder = folder.resolve()
        self.binary = binary
        self.daemon: subprocess.Popen[bytes] | None = None
        self.clients: dict[str, Client] = {}
        self.expected: dict[str, bytearray] = {}
        self.stamp = 0

    # The daemon

    def serve(self) -> None:
        """Starts it, and waits until it serves. `run.json` has the arguments of a `forebay run`."""
        command, sign = ["serve", "--config", str(self.folder / "forebay.toml")], "forebay: serving"
        if (arguments := self.folder / "run.json").exists():
            command, sign = ["run", *json.loads(arguments.read_text())], "ready: "
        said = self.folder / "stderr"
        with said.open("wb") as output:
            self.daemon = subprocess.Popen(
                [self.binary, *command],
                stdout=output,
                stderr=output,
                env={**os.environ, "STATE_DIRECTORY": str(self.folder / "state")},
            )
        until = time.monotonic() + 30
        while sign not in said.read_text():
            if self.daemon.poll() is not None or time.monotonic() > until:
                raise Failure(f"it does not start:\n{said.read_text()}")
            time.sleep(0.02)

    def end(self, how: signal.Signals) -> None:
        """Stops or kills it."""
        for client in self.clients.values():
            client.close()
        self.clients = {}
        assert self.daemon
        self.daemon.send_signal(how)
        code = self.daemon.wait(timeout=60)
        self.daemon = None
        if how == signal.SIGTERM and code != 0:
            raise Failure(f"it ended with {code}:\n{(self.folder / 'stderr').read_text()}")

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def ask(self, *command: str) -> str:
        """A command of the operator, which must succeed."""
        done = subprocess.run(
            [self.binary, *command, "--admin", self.folder / "admin.sock"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise Failure(f"forebay {' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def shown(self, volume: str) -> dict[str, Any]:
        return json.loads(self.ask("volume", "show", volume, "--json"))

    def check(self, golden: Golden) -> tuple[int, str]:
        """Exit code and words of `forebay check`."""
        key = ["--key-file", str(self.folder / golden.key)] if golden.key else []
        devices = [str(self.folder / device) for device in golden.devices]
        state = ["--state-dir", str(self.folder / "state")]
        done = subprocess.run(
            [self.binary, "check", *devices, *key, *state], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr

    # Making it

    def configure(self, pool: str = "", devices: int = 1, **volumes: str) -> None:
        """A pool with these devices, and volumes with these settings."""
        listed = ", ".join(f'{{ path = "{self.folder}/flash{n}.img", size = "{CACHE}" }}' for n in range(devices))
        text = f'[daemon]\nadmin_socket = "{self.folder}/admin.sock"\nstate_dir = "{self.folder}/state"\n\n'
        text += f'[pool.fast]\ndevices = [{listed}]\nsegment_size = "64KiB"\nbuffer_memory = "192MiB"\n'
        text += f'cache_allocation = "sparse"\n{pool}'
        for name, settings in volumes.items():
            self.make_store(name)
            text += f'\n[volume.{name}]\npool = "fast"\nbacking = "file:{self.folder}/{name}.img"\n'
            text += f'exports = ["{self.export(name)}"]\n{QUIET}{settings}'
        (self.folder / "forebay.toml").write_text(text)

    def export(self, name: str) -> str:
        return f"nbd+unix:///{name}?socket={self.folder}/nbd.sock"

    def make_store(self, name: str) -> None:
        """A backing store that has something in its first half."""
        content = bytearray(STORE)
        content[: STORE // 2] = pattern(0xBACC, 0, STORE // 2)
        (self.folder / f"{name}.img").write_bytes(content)
        self.expected[name] = content

    # Its clients

    def client(self, name: str) -> Client:
        if name not in self.clients:
            if not (self.folder / "nbd.sock").exists():
                raise Failure(f"nothing is served:\n{(self.folder / 'stderr').read_text()}")
            self.clients[name] = Client(str(self.folder / "nbd.sock"), name)
        return self.clients[name]

    def write(self, name: str, offset: int, length: int, flags: int = 0) -> None:
        """Something new, which is acknowledged before this returns."""
        self.stamp += 1
        data = pattern(self.stamp, offset, length)
        self.must(self.client(name).call(WRITE, offset, length, data, flags)[0], f"write {offset}+{length}")
        self.expected[name][offset : offset + length] = data

    def zero(self, name: str, offset: int, length: int, kind: int = WRITE_ZEROES) -> None:
        self.must(self.client(name).call(kind, offset, length)[0], f"zero {offset}+{length}")
        self.expected[name][offset : offset + length] = bytes(length)

    def flush(self, name: str) -> None:
        self.must(self.client(name).call(FLUSH)[0], "flush")

    def read(self, name: str, offset: int, length: int) -> None:
        """As it must be."""
        error, data = self.client(name).call(READ, offset, length)
        self.must(error, f"read {offset}+{length}")
        wanted = self.expected[name][offset : offset + length]
        if data != wanted:
            first = next(at for at in range(0, length, SECTOR) if data[at : at + SECTOR] != wanted[at : at + SECTOR])
            raise Failure(f"{name}: the sector at {offset + first} is not what was acknowledged")

    def must(self, error: int, what: str) -> None:
        if error:
            raise Failure(f"{what}: error {error}")


# What is made. Each function leaves the daemon running; how it ends is in KINDS.


def mixed(world: World, name: str = "db") -> None:
    """Dirty, clean and partial blocks, and zeroes."""
    world.write(name, 0, 24 * BLOCK)
    world.flush(name)
    world.ask("flush", name)
    world.read(name, 100 * BLOCK, 8 * BLOCK)
    world.write(name, 4 * BLOCK, 2 * BLOCK)
    for block in range(32, 48):
        world.write(name, block * BLOCK + (block % 7) * SECTOR, SECTOR)
    world.write(name, 150 * BLOCK + SECTOR, 20 * BLOCK)
    world.zero(name, 60 * BLOCK, 3 * BLOCK)
    world.zero(name, 155 * BLOCK, BLOCK, TRIM)
    world.flush(name)
    world.write(name, 200 * BLOCK + 3 * SECTOR, 5 * BLOCK, FLAG_FUA)


def plain(world: World) -> None:
    world.configure(db="")
    world.serve()
    mixed(world)


def run(world: World) -> None:
    """A cache of `forebay run`, with `idle_delay` and the rest as options."""
    world.make_store("db")
    settings = [item for line in QUIET.replace(" ", "").replace('"', "").split() for item in ("--set", line)]
    files = ["--backing", f"file:{world.folder}/db.img", "--cache", f"{world.folder}/flash0.img:{CACHE}"]
    served = ["--export", world.export("db"), "--admin", f"{world.folder}/admin.sock"]
    (world.folder / "run.json").write_text(json.dumps([*files, *served, *settings]))
    world.serve()
    mixed(world)


def log_tail(world: World) -> None:
    """Behind a checkpoint, all over the volume, several times: the start has a log to replay, with a wrap of it."""
    world.configure(db="")
    world.serve()
    mixed(world)
    world.stop()
    world.serve()
    for turn in range(6):
        for block in range(0, 256, 3):
            world.write("db", block * BLOCK + (turn % 3) * SECTOR, 3 * SECTOR if block % 2 else BLOCK)
        world.flush("db")
        if turn == 3:
            world.ask("flush", "db")


def ordered(world: World) -> None:
    """Blocks that are overwritten in later flush epochs: shadows."""
    world.configure(db='destage_order = "ordered"\n')
    world.serve()
    # After a kill, clean blocks are what tells that a store with another inode is the right one.
    world.read("db", 100 * BLOCK, 4 * BLOCK)
    for epoch in range(5):
        world.write("db", epoch * 2 * BLOCK, 16 * BLOCK)
        world.write("db", 64 * BLOCK + epoch * SECTOR, 2 * SECTOR)
        world.flush("db")
    world.write("db", 8 * BLOCK, 4 * BLOCK)


def mirrored(world: World) -> None:
    world.configure("mirror = true\n", 2, db="")
    world.serve()
    mixed(world)


def encrypted(world: World) -> None:
    key = world.folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(bytes((7 * n + 3) % 256 for n in range(64)))
    world.configure(f'encryption_key_file = "{key}"\n', db="")
    world.serve()
    # Little, for it cannot be compressed.
    world.write("db", 0, 4 * BLOCK)
    world.flush("db")
    world.ask("flush", "db")
    world.write("db", 2 * BLOCK, 3 * BLOCK + SECTOR)
    world.write("db", 9 * BLOCK + 3 * SECTOR, 2 * SECTOR, FLAG_FUA)


def devices(world: World) -> None:
    world.configure("", 3, db="")
    world.serve()
    mixed(world)


def past(world: World) -> None:
    """Writes past the cache, over dirty blocks and over clean ones: intents, and marks of what was dropped."""
    # Nothing clean is left that tells that a store with another inode is the right one.
    world.configure(
        db='on_backing_change = "keep-dirty"\n', through='mode = "writethrough"\n', around='mode = "writearound"\n'
    )
    world.serve()
    mixed(world)
    world.ask("set", "db", "mode=passthrough")
    for block in (0, 4, 33, 40, 61, 100, 152, 201):
        world.write("db", block * BLOCK, BLOCK)
    world.write("db", 34 * BLOCK + 2 * SECTOR, 9 * SECTOR)
    for name in ("through", "around"):
        world.read(name, 0, 16 * BLOCK)
        world.write(name, 3 * BLOCK, 5 * BLOCK + SECTOR)
    world.flush("db")
    world.write("db", 170 * BLOCK, BLOCK)


def absent(world: World) -> None:
    """Three volumes; one is detached with what only the cache has."""
    world.configure(db="", logs="", old="")
    world.serve()
    for name in ("db", "logs", "old"):
        mixed(world, name)
    world.clients.pop("old").close()
    world.ask("volume", "detach", "old", "--keep")


def lost(world: World) -> None:
    """A dirty block that was damaged at rest, and found by a client."""
    world.configure(db="")
    world.serve()
    mixed(world)
    world.stop()
    cache = world.folder / "flash0.img"
    content = bytearray(cache.read_bytes())
    wanted = bytes(world.expected["db"][4 * BLOCK : 5 * BLOCK])
    at = content.find(wanted)
    assert at > 0
    while at > 0:
        content[at + 9] ^= 1
        at = content.find(wanted, at + 1)
    cache.write_bytes(content)
    world.serve()
    if not world.client("db").call(READ, 4 * BLOCK, BLOCK)[0]:
        raise Failure("a damaged block was read")
    world.write("db", 20 * BLOCK, BLOCK)


STOP, KILL = World.stop, World.kill
KINDS: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "plain": (plain, STOP),
    "plain-killed": (plain, KILL),
    "run": (run, STOP),
    "run-killed": (run, KILL),
    "log-tail": (log_tail, KILL),
    "ordered": (ordered, STOP),
    "ordered-killed": (ordered, KILL),
    "mirrored": (mirrored, STOP),
    "mirrored-killed": (mirrored, KILL),
    "encrypted": (encrypted, STOP),
    "encrypted-killed": (encrypted, KILL),
    "devices": (devices, STOP),
    "past-killed": (past, KILL),
    "absent": (absent, STOP),
    "absent-killed": (absent, KILL),
    "lost": (lost, STOP),
    "lost-killed": (lost, KILL),
}


def make(kind: str, world: World) -> None:
    """Lets the old daemon make a cache, and packs what is left of it."""
    content, ending = KINDS[kind]
    content(world)
    # What is noted of a store is on disk a tenth of a second after the first write to it.
    time.sleep(1)
    volumes = {}
    for name in world.expected:
        if kind.startswith("absent") and name == "old":
            volumes[name] = Volume(f"{name}.img", attached=False)
            continue
        volumes[name] = Volume(f"{name}.img", dirty_bytes=world.shown(name)["dirty_bytes"])
    if content is lost:
        volumes["db"].lost = [(4 * BLOCK, BLOCK)]
    ending(world)
    key = "key" if (world.folder / "key").exists() else None
    flash = sorted(path.name for path in world.folder.glob("flash*.img"))
    golden = Golden(flash, key, volumes)
    for name, volume in volumes.items():
        golden.mtimes_ns[volume.store] = (world.folder / volume.store).stat().st_mtime_ns
        (world.folder / f"{name}.expected").write_bytes(world.expected[name])
    golden.check, said = world.check(golden)
    print(f"{kind}: check says {golden.check}: {said.splitlines()[-1] if said else ''}")
    (world.folder / "golden.json").write_text(json.dumps(asdict(golden), indent=1, sort_keys=True) + "\n")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
        for path in sorted(world.folder.rglob("*")):
            name = path.relative_to(world.folder).as_posix()
            if not path.is_file() or name == "stderr" or path.suffix in (".lock", ".sock"):
                continue
            data = path.read_bytes()
            if path.suffix in (".json", ".toml"):
                data = data.replace(str(world.folder).encode(), PLACE.encode())
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), path.stat().st_mode & 0o777
            archive.addfile(entry, io.BytesIO(data))
    (HERE / f"{kind}.tar.xz").write_bytes(packed.getvalue())


def unpack(kind: str, world: World) -> Golden:
    """As the old daemon left it."""
    with tarfile.open(HERE / f"{kind}.tar.xz") as archive:
        for entry in archive:
            path = world.folder / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = archive.extractfile(entry)
            assert data
            content = data.read()
            if path.suffix in (".json", ".toml"):
                content = content.replace(PLACE.encode(), str(world.folder).encode())
            path.write_bytes(content)
            path.chmod(entry.mode)
    golden = Golden.load(world.folder / "golden.json")
    for name, stamp in golden.mtimes_ns.items():
        os.utime(world.folder / name, ns=(stamp, stamp))
    for name in golden.volumes:
        world.expected[name] = bytearray((world.folder / f"{name}.expected").read_bytes())
    return golden


def opened(kind: str, world: World) -> None:
    """Fails unless today's daemon finds everything in an old cache."""
    golden = unpack(kind, world)
    code, said = world.check(golden)
    if code != golden.check:
        raise Failure(f"check of the old cache ended with {code}, not {golden.check}:\n{said}")
    world.serve()
    world.stamp = 1 << 32
    for name, volume in golden.volumes.items():
        if not volume.attached:
            store = f"file:{world.folder / volume.store}"
            export, quiet = world.export(name), "idle_delay=off"
            world.ask("volume", "attach", name, "--backing", store, "--export", export, "--set", quiet)
        elif (found := world.shown(name)["dirty_bytes"]) != volume.dirty_bytes:
            raise Failure(f"{name}: {found} bytes are dirty, and were {volume.dirty_bytes}")
        bad = {offset // BLOCK for offset, _ in volume.lost}
        for block in range(STORE // BLOCK):
            if block not in bad:
                world.read(name, block * BLOCK, BLOCK)
            elif not world.client(name).call(READ, block * BLOCK, BLOCK)[0]:
                raise Failure(f"{name}: block {block} was lost, and is read")
        for offset, length in volume.lost:
            world.write(name, offset, length)
        world.ask("flush", name)
        if (world.folder / volume.store).read_bytes() != world.expected[name]:
            raise Failure(f"{name}: the backing store is not what was acknowledged")
    world.stop()
    code, said = world.check(golden)
    if code != 0:
        raise Failure(f"check of what is left ended with {code}:\n{said}")


def main(action: str, binary: str, *kinds: str) -> int:
    do = {"make": make, "open": opened}[action]
    failed = 0
    for kind in kinds or KINDS:
        folder = Path(tempfile.mkdtemp(prefix="forebay-golden."))
        world = World(folder, Path(binary).resolve())
        try:
            do(kind, world)
            print(f"{kind}: ok", flush=True)
        except Failure as failure:
            failed += 1
            print(f"{kind}: FAILED: {failure}", flush=True)
        finally:
            if world.daemon:
                world.daemon.kill()
                world.daemon.wait()
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

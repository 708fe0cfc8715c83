"""Devices that end before the end that they had: files that are cut, and loop devices that shrink.

What is missing answers with errors and never reads as zeroes; an alarm names the device. When the bytes are back
everything goes on and nothing false is cached. Nothing is lost of a cache device that is back within some seconds; of
one that is not, what can be read is rescued. A member of a mirrored cache is put out and can be replaced. A cache that
is shorter than it was is refused at the start."""

import fcntl
import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.daemon import Daemon
from harness.devices import MIB, Devices, random_file, sparse
from harness.nbd import FLAG_FUA, FLUSH, READ, WRITE, Client
from harness.waiting import eventually

BLOCK = 64 << 10
LEFT = 16 * MIB
LOOP_SET_CAPACITY = 0x4C07

POOL = '[pool.fast]\ndevices = [{{ path = "{path}"{size} }}]\n'
MIRROR = """[pool.safe]
devices = [{{ path = "{folder}/a.img", size = "32MiB" }}, {{ path = "{path}" {size} }}]
mirror = true
"""
VOLUME = """
[volume.db]
pool = "{pool}"
backing = "file:{backing}"
exports = ["{export}"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
admission = "always"
"""


class Cut:
    """A device whose file can be cut and made whole again: the file itself, or a loop device on it."""

    def __init__(self, file: Path, device: Path) -> None:
        self.file = file
        self.device = device
        self.tail = b""

    @property
    def is_loop(self) -> bool:
        return self.device != self.file

    def _tell(self) -> None:
        if self.is_loop:
            with self.device.open("rb", buffering=0) as loop:
                fcntl.ioctl(loop, LOOP_SET_CAPACITY)

    def cut(self, left: int = LEFT) -> None:
        with self.file.open("rb") as file:
            file.seek(left)
            self.tail = file.read()
        os.truncate(self.file, left)
        self._tell()

    def restore(self) -> None:
        with self.file.open("r+b") as file:
            file.seek(LEFT)
            file.write(self.tail)
        self._tell()


@pytest.fixture(params=["file", "loop"])
def make_device(request: pytest.FixtureRequest, devices: Devices) -> Callable[..., Cut]:
    """Makes a device of a file, which Forebay may have to make, or a loop device of a file with `size` bytes."""
    if request.param == "file":
        return lambda file, _size: Cut(file, file)
    need("losetup")
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    return lambda file, size: Cut(file, devices.loop(sparse(file, size)))


class NamedBlocks:
    """Blocks that name themselves, over bytes of a file or zeroes: what the volume must hold."""

    def __init__(self, daemon: Daemon, base: Path | None = None) -> None:
        self.daemon = daemon
        self.base = base.read_bytes() if base else b""
        self.put_at: list[tuple[int, int]] = []

    def client(self) -> Client:
        return Client(str(self.daemon.socket("db")), "db", timeout=100)

    def expected(self, at: int, length: int) -> bytes:
        """Of one block, or a part of it."""
        for start, end in self.put_at:
            if start <= at < end:
                return block(at // BLOCK * BLOCK)[at % BLOCK :][:length]
        return self.base[at : at + length] if self.base else bytes(length)

    def put(self, offset: int, size: int) -> None:
        with self.client() as client:
            for at in range(offset, offset + size, BLOCK):
                assert client.call(WRITE, at, BLOCK, block(at))[0] == 0, f"write at {at}"
            assert client.call(FLUSH)[0] == 0
        self.put_at.append((offset, offset + size))

    def fails(self, at: int) -> None:
        """Nothing can be read there."""
        with self.client() as client:
            for length in (512, 4096, BLOCK):
                error, _ = client.call(READ, at, length)
                assert error, f"a read of {length} bytes at {at}, which are not there, succeeded"

    def refuses_write(self, at: int) -> None:
        with self.client() as client:
            error, _ = client.call(WRITE, at, 4096, block(at)[:4096], flags=FLAG_FUA)
        assert error, "a write to a device that is too short succeeded"

    def reads(self, at: int) -> None:
        with self.client() as client:
            error, data = client.call(READ, at, BLOCK)
        assert error == 0, f"at {at}: error {error}"
        assert data == self.expected(at, BLOCK), f"at {at}: {data[:16]!r}"

    def same(self) -> None:
        """All of the volume."""
        with self.client() as client:
            for at in range(0, client.size, BLOCK):
                error, data = client.call(READ, at, BLOCK)
                assert error == 0, f"at {at}: error {error}"
                assert data == self.expected(at, BLOCK), f"at {at}: {data[:16]!r}"

    def right_or_lost(self, start: int, end: int) -> None:
        """Every sector of what was put is right, or is listed as lost and answers with an error; there are both."""
        lost = lost_sectors(self.daemon)
        right = 0
        with self.client() as client:
            for at in range(start, end, 4096):
                error, data = client.call(READ, at, 4096)
                gone = any(sector in lost for sector in range(at, at + 4096, 512))
                assert bool(error) == gone, f"byte {at}: error {error}, listed {gone}"
                assert error or data == self.expected(at, 4096), f"byte {at}: wrong data"
                right += not error
        assert lost, "nothing is lost: the test tests nothing"
        assert right, "nothing is right: the test tests nothing"


def block(at: int) -> bytes:
    return struct.pack("<Q", at + 1) * (BLOCK // 8)


def lost_sectors(daemon: Daemon) -> set[int]:
    """Offsets of sectors that the records of failed caches list."""
    lost: set[int] = set()
    for record in (daemon.state_dir / "failed-caches").glob("*.json"):
        for volume in json.loads(record.read_text())["volumes"]:
            for part in volume["lost"]:
                lost |= set(range(part["offset_bytes"], part["offset_bytes"] + part["bytes"], 512))
    return lost


def volume(daemon: Daemon, pool: str, backing: Path) -> str:
    return VOLUME.format(pool=pool, backing=backing, export=daemon.nbd("db"))


def serve_cached_by(daemon: Daemon, folder: Path, cut: Cut) -> NamedBlocks:
    """Volume `db` on a backing file of 64 MiB and a cache on the device."""
    base = random_file(folder / "disk.img", 64 * MIB)
    size = "" if cut.is_loop else ', size = "64MiB"'
    daemon.configure(POOL.format(path=cut.device, size=size) + volume(daemon, "fast", base))
    daemon.start()
    if cut.is_loop:
        # What is there and begins with zeroes is taken only when that is said.
        daemon("pool", "open", "fast", "--overwrite")
    return NamedBlocks(daemon, base)


def is_told(daemon: Daemon, cut: Cut) -> None:
    """The alarm has the lengths, the event the operation that failed."""
    alarm = daemon.alarmed("device.ended")
    assert all(value in alarm["message"] for value in (str(cut.device), str(LEFT), str(64 * MIB))), alarm
    details = [event["details"] for event in daemon.events("device.failed")]
    wanted = {"operation": "read", "offset_bytes": 32 * MIB, "errno": 6, "device": str(cut.device)}
    assert any(found and wanted.items() <= found.items() for found in details), details


def nothing_is_written(daemon: Daemon, blocks: NamedBlocks, cut: Cut) -> None:
    """To what is cut, or it would get a hole that reads as zeroes."""
    flush = daemon.forebay.start("flush", "db", name="flush")

    def has_tried() -> bool:
        jobs = [job for job in daemon.api.get("/v1/jobs") if job["kind"] == "flush"]
        return any(job["errors"] for job in jobs) or not flush.is_running

    eventually(has_tried, 30, "the flush has met an error")
    assert flush.is_running or flush.wait() != 0, flush.tail()
    flush.kill()
    daemon("set", "db", "mode=writethrough")
    blocks.refuses_write(50 * MIB)
    daemon("set", "db", "mode=writeback")
    size = cut.file.stat().st_size
    assert size == LEFT, f"{cut.file} has {size} bytes: it was made longer"
    daemon.refused("backing.shrunk", "volume", "resize", "db", "max", mentions=["db"])


def test_cut_backing_store_is_no_zeroes(daemon: Daemon, folder: Path, make_device: Callable[..., Cut]) -> None:
    base = random_file(folder / "base", 64 * MIB)
    (folder / "disk.img").write_bytes(base.read_bytes())
    cut = make_device(folder / "disk.img", 64 * MIB)
    flash = folder / "flash.img"
    daemon.configure(POOL.format(path=flash, size=', size = "64MiB"') + volume(daemon, "fast", cut.device))
    daemon.start()
    blocks = NamedBlocks(daemon, base)
    blocks.put(8 * MIB, MIB)
    blocks.put(40 * MIB, MIB)
    before = len(daemon.messages())
    cut.cut()
    for _ in range(10):
        blocks.fails(32 * MIB)
        blocks.fails(16 * MIB)
    blocks.reads(2 * MIB)  # what is there
    blocks.reads(40 * MIB)  # what the cache has
    is_told(daemon, cut)
    nothing_is_written(daemon, blocks, cut)
    lines = daemon.messages()[before:]
    assert len(lines) < 20, f"60 reads failed, and the log is flooded: {lines}"

    cut.restore()
    daemon.quiet("device.ended")
    blocks.same()
    daemon("flush", "db")
    blocks.same()
    daemon("pool", "scrub", "fast")
    daemon.stop()
    daemon("check", flash)
    daemon.start()
    blocks.same()
    daemon.stop()


def test_cut_cache_is_waited_for(daemon: Daemon, folder: Path, make_device: Callable[..., Cut]) -> None:
    """A pause for those who read, and nothing else."""
    cut = make_device(folder / "flash.img", 64 * MIB)
    blocks = serve_cached_by(daemon, folder, cut)
    blocks.put(20 * MIB, 16 * MIB)
    outcome: list[object] = []

    def read_all() -> None:
        try:
            blocks.same()
            outcome.append("same")
        except BaseException as error:
            outcome.append(error)

    cut.cut()
    reader = threading.Thread(target=read_all)
    reader.start()
    daemon.alarmed("device.ended")
    assert not outcome, f"the reader did not wait: {outcome}"
    cut.restore()
    reader.join(100)
    assert outcome == ["same"], f"the reader met an error, or wrong data: {outcome}"
    blocks.put(36 * MIB, MIB)
    blocks.same()
    daemon.quiet("device.ended")
    assert daemon.alarms() == []
    assert not list((daemon.state_dir / "failed-caches").glob("*.json")), "the cache was given up"
    judged = daemon.events("block,cache")
    assert not judged, judged
    daemon.kill()
    daemon.start()
    blocks.same()


def test_cache_cut_for_long_has_failed(daemon: Daemon, folder: Path) -> None:
    """While nothing asks for anything; what comes back too late changes nothing."""
    cut = Cut(folder / "flash.img", folder / "flash.img")
    blocks = serve_cached_by(daemon, folder, cut)
    blocks.put(20 * MIB, 17 * MIB)
    cut.cut()
    daemon.alarmed("device.ended")
    daemon.alarmed("cache.failed", pool="fast")
    eventually(lambda: daemon.events("block.lost"), 30, "the rescue has ended")
    blocks.right_or_lost(16 * MIB, 41 * MIB)
    cut.restore()
    blocks.right_or_lost(16 * MIB, 41 * MIB)
    daemon.kill()
    daemon.start()
    blocks.right_or_lost(16 * MIB, 41 * MIB)


def mirror_states(daemon: Daemon) -> dict[str, str]:
    return {device["path"]: device["state"] for device in daemon.pool("safe")["devices"]}


def test_cut_member_is_replaced(daemon: Daemon, folder: Path, make_device: Callable[..., Cut]) -> None:
    member = make_device(folder / "b.img", 32 * MIB)
    backing = sparse(folder / "disk.img", 16 * MIB)
    size = "" if member.is_loop else ', size = "32MiB"'
    pool = MIRROR.format(folder=folder, path=member.device, size=size)
    daemon.configure(pool + volume(daemon, "safe", backing))
    daemon.start()
    if member.is_loop:
        # What is there and begins with zeroes is taken only when that is said.
        daemon("pool", "open", "safe", "--overwrite")
    blocks = NamedBlocks(daemon)
    blocks.put(0, 8 * MIB)
    member.cut(4 * MIB)
    blocks.put(8 * MIB, MIB)
    daemon.alarmed("cache.degraded", pool="safe")
    blocks.same()
    states = mirror_states(daemon)
    assert states[str(member.device)].startswith("out"), states
    assert states[str(folder / "a.img")] == "ok", states
    daemon("pool", "replace", "safe", "--device", f"{folder}/c.img:32MiB")
    eventually(lambda: daemon.pool("safe")["mirror"] == "whole", 30, "the mirror is whole")
    assert set(mirror_states(daemon).values()) == {"ok"}
    daemon.quiet("device.ended")

    # The other one, while nothing asks for anything.
    os.truncate(folder / "a.img", 4 * MIB)
    daemon.alarmed("cache.degraded", pool="safe")
    blocks.same()


def test_shorter_cache_is_refused_at_start(daemon: Daemon, folder: Path) -> None:
    flash = folder / "cut.img"
    backing = sparse(folder / "other.img", 64 * MIB)
    daemon.configure(POOL.format(path=flash, size=', size = "64MiB"') + volume(daemon, "fast", backing))
    daemon.start()
    daemon.stop()
    os.truncate(flash, LEFT)
    daemon.start()
    daemon.logged("cache.truncated", [flash, 64 * MIB // 4096, LEFT // 4096])
    assert daemon.pool("fast")["not_open"], daemon.pool("fast")
    assert flash.stat().st_size == LEFT

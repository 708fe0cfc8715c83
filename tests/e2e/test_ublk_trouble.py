"""Trouble under a block device of ours (ublk:) with a mounted file system: a backing store that hangs, also over a stop
and a kill of the daemon; one that fails; a cache device that dies with nothing dirty in it; a backing store that is
full. Whoever uses the device waits or sees an error, as with a disk. Nothing that was acknowledged is lost, and nothing
reads wrong."""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.block import Block, KernelLog, waits
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, Mapped, checksum, random_file, sparse
from harness.process import Process
from harness.waiting import eventually

CONFIG = """
[pool.fast]
devices = ["{flash.path}"]

[volume.db]
pool = "fast"
backing = "{disk.path}"
exports = ["ublk:"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""
OTHER = """
[pool.other]
devices = [{{ path = "{folder}/other.img", size = "64MiB" }}]

[volume.small]
pool = "other"
backing = "file:{store}"
exports = ["ublk:"]
"""
# Errors of the block devices of volumes, not of those under them.
OURS = "ublk|EXT4-fs"
ublk = pytest.mark.guest("ublk")


@dataclass
class Served:
    """Volume `db` with a mounted file system: a file `hot` that is in the cache, and a file `cold` that is not."""

    folder: Path
    daemon: Daemon
    disk: Mapped
    flash: Mapped
    block: Block
    cold_sum: str

    @property
    def hot(self) -> Path:
        return self.block.at / "hot"

    @property
    def cold(self) -> Path:
        return self.block.at / "cold"

    def put(self, name: str) -> None:
        """The content of a file of the folder becomes that of `hot`, past the page cache."""
        put(self.folder / name, self.hot)

    def is_hot(self, name: str, when: str) -> None:
        assert read(self.hot) == checksum(self.folder / name), f"the hot file is another one {when}"


def put(source: Path, target: Path) -> None:
    run(["dd", f"if={source}", f"of={target}", "bs=1M", "oflag=direct", "conv=notrunc,fsync"], seconds=60)


def read(path: Path) -> str:
    """The checksum of a file, read past the page cache."""
    pipe = 'dd "if=$1" bs=1M iflag=direct status=none | sha256sum'
    return run(["bash", "-o", "pipefail", "-c", pipe, "bash", path], seconds=60).stdout.split()[0]


def in_background(folder: Path, source: Path, target: Path, *options: str) -> Process:
    """Copies past the page cache, and waits until that waits."""
    process = Process(["dd", f"if={source}", f"of={target}", "bs=1M", *options], folder / "copy.err")
    eventually(lambda: waits(process.pid), 30, "it waits for the device")
    return process


@pytest.fixture
def served(folder: Path, devices: Devices, daemon: Daemon, root: None) -> Served:
    del root
    need("mkfs.ext4", "fsck.ext4", "fio", "dmsetup", "losetup")
    disk, flash = Mapped(folder, devices, "disk", 128 * MIB), Mapped(folder, devices, "flash", 64 * MIB)
    # What was there before the daemon is not in the cache.
    at = folder / "before"
    run(["mkfs.ext4", "-q", disk.path])
    devices.mount(str(disk.path), at=at)
    cold_sum = checksum(random_file(at / "cold", 8 * MIB))
    run(["umount", at])
    daemon.configure(CONFIG.format(disk=disk, flash=flash))
    daemon.start()
    block = Block(folder, devices, daemon.forebay, "db")
    daemon(
        "pool", "open", "fast", "--overwrite"
    )  # it is no new file: only the operator knows that nothing on it is needed
    eventually(block.path.is_block_device, 20, "the device is there")
    block.mount(new=False)
    for name in ("one", "two"):
        random_file(folder / name, 4 * MIB)
    shutil.copy(folder / "one", block.at / "hot")
    run(["sync", "-f", block.at])
    return Served(folder, daemon, disk, flash, block, cold_sum)


@ublk
def test_store_hangs_over_a_stop(served: Served) -> None:
    """Hits and writes go on, a miss waits. A daemon that is stopped meanwhile leaves the device for those who wait."""
    kernel, daemon, folder = KernelLog(), served.daemon, served.folder
    number = served.block.number()
    served.disk.hangs()
    reader = in_background(folder, served.cold, folder / "cold", "iflag=direct")
    served.put("two")
    served.is_hot("two", "while the store hangs")
    assert waits(reader.pid), "the miss does not wait"

    code = daemon.running.terminate(60)
    assert code > 0, f"what is not closed is told as closed: exit code {code}"
    assert waits(reader.pid), "the miss does not wait"
    served.disk.resumes()
    daemon.start()
    assert served.block.number() == number, "it is another device"
    reader.succeeds()
    assert checksum(folder / "cold") == served.cold_sum, "the miss over a stop"
    served.is_hot("two", "over a stop")
    kernel.has_no_errors("a store that hung", of=OURS)


@ublk
def test_store_hangs_over_a_kill(served: Served) -> None:
    kernel, daemon, folder = KernelLog(), served.daemon, served.folder
    number = served.block.number()
    served.disk.hangs()
    served.put("two")
    daemon.kill()
    writer = in_background(folder, folder / "one", served.hot, "oflag=direct", "conv=notrunc,fsync")
    served.disk.resumes()
    daemon.start()
    assert served.block.number() == number, "it is another device"
    writer.succeeds()
    served.is_hot("one", "over a kill")
    kernel.has_no_errors("a kill while the store hung", of=OURS)


@ublk
def test_store_that_fails(served: Served) -> None:
    """A miss is an error, hits and writes go on; and later the store is well again."""
    daemon = served.daemon
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    daemon("flush", "db")
    served.disk.becomes("error")
    served.put("two")
    served.is_hot("two", "while the store fails")
    with pytest.raises(OSError) as raised, served.block.path.open("rb", buffering=0) as device:
        os.pread(device.fileno(), 8 * MIB, 100 * MIB)
    assert raised.value.errno == errno.EIO
    flush = daemon.forebay.start("flush", "db", name="flush")
    daemon.alarmed("destage.failed", volume="db")
    assert flush.popen.poll() != 0, "what cannot be written back is written back"
    flush.kill()

    served.disk.becomes("linear")
    daemon("flush", "db")
    assert read(served.cold) == served.cold_sum, "a miss after the store is well again"
    daemon.quiet("destage.failed", 60, volume="db")


@ublk
def test_cache_device_that_dies(served: Served) -> None:
    """Nothing in it is nowhere else: the file system goes on without a cache."""
    kernel, daemon, block = KernelLog(), served.daemon, served.block
    # What the file system writes by itself between the two would be in the cache alone.
    run(["fsfreeze", "--freeze", block.at])
    try:
        daemon("flush", "db")
        served.flash.becomes("error")
    finally:
        run(["fsfreeze", "--unfreeze", block.at])
    load = block.load()
    load.goes_on(300)
    load.finish()
    served.is_hot("one", "without a cache")
    assert read(served.cold) == served.cold_sum, "the cold file without a cache"
    daemon.alarmed("cache.failed", pool="fast")
    kernel.has_no_errors("a cache device that died", of=OURS)
    block.unmount()
    block.checked()
    daemon.stop()
    assert not block.is_there(), "the name is still there"
    run(["fsck.ext4", "-f", "-n", served.disk.path])


@ublk
def test_store_that_is_full(folder: Path, devices: Devices, daemon: Daemon, root: None) -> None:
    """The cache takes what it can, and that is written back when there is room."""
    del root
    store = sparse(devices.tmpfs("small", "8M") / "disk.img", 32 * MIB)
    daemon.configure(OTHER.format(folder=folder, store=store))
    small = Block(folder, devices, daemon.forebay, "small")
    daemon.start()
    random_file(folder / "much", 16 * MIB)
    put(folder / "much", small.path)
    daemon.alarmed("destage.failed", volume="small")
    run(["mount", "-o", "remount,size=64M", store.parent])
    daemon("flush", "small")
    daemon.quiet("destage.failed", 60, volume="small")
    daemon.stop()
    run(["cmp", "-n", str(16 * MIB), folder / "much", store])

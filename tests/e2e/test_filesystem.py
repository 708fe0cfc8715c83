"""A real file system on the volume, and kill -9 of the daemon while files are copied to it: the file system recovers
by its journal, checks clean, and what was synced before is there to the last byte."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import RunVolume
from harness.devices import MIB, Devices, checksum
from harness.mounts import LoopMount, abort_fuse
from harness.process import Process
from harness.waiting import eventually

# xfs wants at least 300 MiB.
SIZE = {"ext4": 256 * MIB, "xfs": 400 * MIB}
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
CHECK = {"ext4": ["fsck.ext4", "-fn"], "xfs": ["xfs_repair", "-n"]}
FILES = 800


class Disk:
    """The volume as a loop device, by nbdfuse."""

    def __init__(self, volume: RunVolume, devices: Devices) -> None:
        self.volume = volume
        self.fuse = volume.folder / "fuse"
        self.fuse.mkdir()
        self.mount = LoopMount(devices, volume.folder / "mount")
        self.nbdfuse: Process | None = None
        devices.at_exit(self.detach)

    def attach(self) -> Path:
        log = self.volume.folder / "nbdfuse.err"
        nbdfuse = self.nbdfuse = Process(["nbdfuse", self.fuse / "disk", self.volume.uri], log)
        file = self.fuse / "disk"
        eventually(lambda: not nbdfuse.is_running or file.exists(), 30, "nbdfuse shows the volume")
        if not nbdfuse.is_running:
            pytest.skip(f"nbdfuse does not start: {nbdfuse.tail()}")
        return self.mount.attach(file, optional=True)

    def detach(self) -> None:
        """Whatever is there: nbdfuse aborts by itself when the daemon is killed, and the mount is left then."""
        self.mount.detach(ok=False)
        run(["umount", "-l", self.fuse], ok=False)
        if self.nbdfuse:
            self.nbdfuse.kill()
        self.nbdfuse = None


def make_files(folder: Path) -> Path:
    """Small files of many sizes, about 16 MiB."""
    chance = random.Random(1)
    for number in range(FILES):
        path = folder / f"files/{number % 20}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(1, 40_000)))
    return folder / "files"


def sums(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def copy_until_it_fails(folder: Path, files: Path, to: Path) -> Process:
    """Copies and syncs round after round, so that a kill meets writes on their way and not only the page cache."""
    copy = 'mkdir -p "$2/more" && cp -r "$1" "$2/more/$((round % 3))" && sync -f "$2" && echo copied'
    script = f'round=0; while {copy}; do round=$((round + 1)); rm -rf "$2/more/$((round % 3))"; done'
    process = Process(["sh", "-c", script, "sh", files, to], folder / "copier.err")
    eventually(lambda: "copied" in process.stdout() or not process.is_running, 60, "a round of copies")
    return process


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_synced_files_survive_kill(
    fuse: None, make_volume: Callable[..., RunVolume], devices: Devices, folder: Path, kind: str
) -> None:
    del fuse
    need("nbdfuse", "losetup", "fusermount3", MAKE[kind][0], CHECK[kind][0])
    devices.at_exit(lambda: abort_fuse(folder))
    volume = make_volume(cache_size="64MiB")
    volume.make_backing(SIZE[kind])
    volume.start()
    disk = Disk(volume, devices)
    at = disk.mount.at
    run([*MAKE[kind], disk.attach()])
    disk.mount.mount()
    files = make_files(folder)
    run(["cp", "-r", files, at / "synced"])
    run(["sync", "-f", at])
    expected = sums(files)
    assert len(expected) == FILES

    copier = copy_until_it_fails(folder, files, at)
    time.sleep(random.uniform(0, 1.5))
    assert copier.is_running, copier.tail()
    volume.kill()
    copier.wait()
    disk.mount.drop()
    disk.detach()

    volume.start()
    device = disk.attach()
    disk.mount.mount()
    assert sums(at / "synced") == expected
    disk.mount.unmount()
    run([*CHECK[kind], device])
    disk.mount.detach()
    disk.detach()
    volume.stop()

"""Volumes as files: FUSE mounts of a test, and loop devices and file systems on them."""

import os
from pathlib import Path

import pytest

from .command import Result, run
from .devices import Devices, unmount
from .waiting import eventually

CONNECTIONS = Path("/sys/fs/fuse/connections")


def mounts_below(folder: Path) -> list[tuple[Path, str, str]]:
    """Mounts below a folder, the newest last: (place, type, device number)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split(" ")
        place = words[4].encode().decode("unicode_escape")
        if place.startswith(f"{folder}/"):
            found.append((Path(place), line.partition(" - ")[2].split(" ")[0], words[2]))
    return found


def loops_below(folder: Path) -> list[str]:
    """Loop devices on files below a folder."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().startswith(f"{folder}/"):
                found.append(f"/dev/{backing.parts[3]}")
        except OSError:
            continue  # it is gone
    return found


def abort_fuse(folder: Path) -> None:
    """At the end of a test: no process stays in a system call on a file that is not answered, nothing stays mounted."""
    if not os.path.ismount(CONNECTIONS):
        run(["mount", "-t", "fusectl", "none", str(CONNECTIONS)], ok=False)
    for _, kind, device in mounts_below(folder):
        if kind.startswith("fuse"):
            abort = CONNECTIONS / device.partition(":")[2] / "abort"
            if abort.exists():
                abort.write_text("1")
    for loop in loops_below(folder):
        run(["losetup", "-d", loop], ok=False)
    for place, _, _ in reversed(mounts_below(folder)):
        run(["umount", "-l", str(place)], ok=False)


class LoopMount:
    """A loop device on a file of a volume, and the file system on it mounted."""

    def __init__(self, devices: Devices, at: Path, *, direct: bool = True) -> None:
        self.devices = devices
        self.at = at
        self.options = ["--direct-io=on"] if direct else []
        self.device: Path | None = None

    def attach(self, file: Path, *, optional: bool = False) -> Path:
        """The loop device; `optional` skips the test where the driver takes no such file."""
        result = run(["losetup", "--find", "--show", *self.options, str(file)], ok=False)
        if result.code != 0 and optional:
            result = run(["losetup", "--find", "--show", str(file)], ok=False)
            if result.code != 0:
                pytest.skip(f"the loop driver does not take a file on FUSE here: {result.stderr.strip()}")
        assert result.code == 0, result.describe()
        device = Path(result.stdout.strip())
        self.device = device
        self.devices.at_exit(lambda: self.detach(ok=False))
        return device

    def mount(self) -> None:
        assert self.device is not None
        self.devices.mount(str(self.device), at=self.at)

    def unmount(self) -> None:
        unmount(self.at, self.device)

    def detach(self, *, ok: bool = True) -> None:
        """Takes the loop device away, and waits until it is gone: the kernel may do it later."""
        device, self.device = self.device, None
        if device is not None:
            result = run(["losetup", "--detach", str(device)], ok=ok)
            backing = Path(f"/sys/block/{device.name}/loop/backing_file")
            if result.code == 0:
                eventually(lambda: not backing.exists(), 20, f"{device} is let go")

    def drop(self) -> None:
        """After the death of the server: nothing can be written back any more."""
        run(["umount", "-l", str(self.at)])
        if self.device is not None:
            run(["losetup", "--detach", str(self.device)], ok=False)
        self.device = None


def read_directly(file: Path, blocks: int = 4, seconds: float = 20) -> Result:
    """Reads the beginning of a file past the page cache, in a process that can be ended if it is not answered."""
    return run(
        ["dd", f"if={file}", "of=/dev/null", "bs=64K", f"count={blocks}", "iflag=direct", "status=none"],
        seconds=seconds,
    )

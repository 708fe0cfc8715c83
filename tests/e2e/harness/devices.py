"""Devices for tests: files, loop devices, tmpfs, and devices that fail."""

import contextlib
import fcntl
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .command import run
from .process import Process
from .waiting import eventually

MIB = 1 << 20


def sparse(path: Path, size: int) -> Path:
    """A file of this many bytes, all of them a hole where they were not there before."""
    path.touch()
    os.truncate(path, size)
    return path


def random_file(path: Path, size: int, seed: int | None = None) -> Path:
    """A file of random bytes."""
    path.write_bytes(random.Random(seed).randbytes(size) if seed is not None else os.urandom(size))
    return path


def released(path: Path) -> None:
    """Waits until no process holds a device. The kernel may carry out writes of one that was killed a moment longer."""

    def is_free() -> bool:
        with path.open("rb") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    eventually(is_free, 60, f"{path} is released")


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def assert_same(one: Path, other: Path, when: str = "") -> None:
    result = run(["cmp", str(one), str(other)], ok=False)
    assert result.code == 0, f"the contents differ {when}: {result.describe()}"


class Devices:
    """Makes devices below a folder, and takes all of them away at the end, the newest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exits = contextlib.ExitStack()

    def at_exit(self, undo: Callable[[], object]) -> None:
        """Runs at the end of the test, whatever happens; an error of it is ignored."""

        def quietly() -> None:
            with contextlib.suppress(Exception):
                undo()

        self.exits.callback(quietly)

    def mount(self, *words: str, at: Path) -> Path:
        """`mount WORDS... AT`; skips the test where nothing may be mounted."""
        at.mkdir(exist_ok=True, parents=True)
        result = run(["mount", *words, str(at)], ok=False)
        if result.code != 0:
            pytest.skip(f"nothing may be mounted here: {result.stderr.strip()}")
        self.at_exit(lambda: run(["umount", "-l", str(at)], ok=False))
        return at

    def tmpfs(self, name: str, size: str) -> Path:
        """A tmpfs that is full after so much."""
        return self.mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", at=self.folder / name)

    def loop(self, file: Path, *options: str) -> Path:
        """A loop device on a file. It can be written unless asked otherwise, whatever its last user left."""
        device = Path(run(["losetup", "--find", "--show", *options, str(file)]).stdout.strip())
        if "--read-only" not in options:
            run(["blockdev", "--setrw", device])
        real = file.resolve()
        self.at_exit(lambda: lies_on(device, real) and run(["losetup", "-d", device], ok=False))
        return device

    def clean_up(self) -> None:
        self.exits.close()


def lies_on(device: Path, file: Path) -> bool:
    """Whether a loop device is on this file: its number may be another test's by now."""
    try:
        below = Path(f"/sys/block/{device.name}/loop/backing_file").read_text()
    except OSError:
        return False
    return below.rstrip("\n").removesuffix(" (deleted)") == str(file)


def unmount(at: Path, device: Path | None = None) -> None:
    """Unmounts, and waits until the device is free: a mount namespace that is being made holds it for a moment."""
    run(["umount", str(at)])
    if device is not None:
        eventually(lambda: can_be_had_alone(device), 20, f"{device} is not in use")


def can_be_had_alone(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError:
        return False
    return True


def cut_off(process: Process, file: Path, size: str) -> None:
    """Cuts a file that the daemon uses, and makes its tmpfs too small to write it again: a device that is gone."""

    def cut() -> bool:
        process.pause()
        try:
            os.truncate(file, 0)
            return run(["mount", "-o", f"remount,size={size}", str(file.parent)], ok=False).code == 0
        finally:
            process.resume()

    # The daemon may write to it again between the two.
    eventually(cut, 20, f"{file} is cut off")


def spoil(path: Path, byte: int, *, only_first: bool = False) -> int:
    """Changes every second block of a file that is full of `byte`, or only the first; returns how many were changed."""
    seen = spoilt = 0
    with path.open("r+b") as file:
        offset = 0
        while block := file.read(4096):
            if block == bytes([byte]) * 4096:
                seen += 1
                if seen % 2 and not (only_first and spoilt):
                    file.seek(offset + 100)
                    file.write(b"!")
                    file.seek(offset + 4096)
                    spoilt += 1
            offset += 4096
    assert spoilt, f"no block of {byte:#x} in {path}"
    return spoilt


class Mapped:
    """A device that hangs or fails when it is told to: mapped by device mapper onto a file."""

    def __init__(self, folder: Path, devices: Devices, name: str, size: int) -> None:
        self.name = f"{folder.name}-{name}"
        self.path = Path("/dev/mapper", self.name)
        self.loop = devices.loop(sparse(folder / f"{name}.img", size))
        self.sectors = size // 512
        run(["dmsetup", "create", self.name, "--table", self.table("linear")])
        devices.at_exit(lambda: run(["dmsetup", "remove", "--force", self.name], ok=False))
        devices.at_exit(self.resumes)

    def table(self, kind: str) -> str:
        of = {"linear": f" {self.loop} 0", "flakey": f" {self.loop} 0 0 86400", "error": ""}
        return f"0 {self.sectors} {kind}{of[kind]}"

    def hangs(self) -> None:
        run(["dmsetup", "suspend", "--noflush", "--nolockfs", self.name])

    def resumes(self) -> None:
        run(["dmsetup", "resume", self.name])

    def becomes(self, kind: str) -> None:
        """`error` (no write cache to flush is left), `flakey` (flushes fail, too), or `linear` again."""
        run(["dmsetup", "suspend", "--nolockfs", self.name])
        run(["dmsetup", "load", self.name, "--table", self.table(kind)])
        run(["dmsetup", "resume", self.name])

"""A volume as a block device (`ublk:NAME`), with a file system on it, and what the kernel says of it."""

import os
import re
import uuid
from pathlib import Path

from .clients import Fio, fio_files
from .command import Forebay, run
from .devices import Devices, unmount
from .waiting import eventually

KERNEL_ERRORS = re.compile(r"I/O error|EXT4-fs error|Buffer I/O")
# Longer than any test: what it is for ends it.
UNTIL_ENDED = 100_000


class KernelLog:
    """What the kernel has said since this was made."""

    def __init__(self) -> None:
        self.mark = f"forebay-e2e {uuid.uuid4()}"
        Path("/dev/kmsg").write_text(f"{self.mark}\n")

    def lines(self) -> list[str]:
        return run(["dmesg"]).stdout.rpartition(self.mark)[2].splitlines()[1:]

    def has_no_errors(self, when: str, *, of: str = "") -> None:
        """No error of any device, or of those whose lines match `of`."""
        found = [line for line in self.lines() if KERNEL_ERRORS.search(line) and re.search(of, line)]
        assert not found, f"the kernel met errors: {when}: {found}"


class Block:
    """The block device /dev/forebay/NAME, and where its file system is mounted."""

    def __init__(self, folder: Path, devices: Devices, forebay: Forebay, name: str) -> None:
        self.folder = folder
        self.devices = devices
        self.forebay = forebay
        self.name = name
        self.path = Path("/dev/forebay", name)
        self.at = folder / f"mnt-{name}"
        self.loads: list[Load] = []
        self.at_exit()

    def at_exit(self) -> None:
        """A device that waits for its daemon would hang whoever comes next."""

        def remove() -> None:
            for load in self.loads:
                load.fio.process.popen.kill()
            if self.is_there():
                forced = ("ublk", "remove", self.name, "--force")
                eventually(lambda: self.forebay(*forced, ok=False).code == 0 or not self.is_there(), 20)

        self.devices.at_exit(remove)

    def is_there(self) -> bool:
        return self.path.is_symlink()

    def number(self) -> int:
        """N of /dev/ublkbN."""
        return int(self.path.readlink().name.removeprefix("ublkb"))

    def node(self) -> Path:
        return Path(f"/dev/ublkb{self.number()}")

    def size(self) -> int:
        # A daemon that starts on a busy machine serves before its pools are open.
        eventually(self.is_there, 60, f"{self.path} is there")
        return int(run(["blockdev", "--getsize64", self.path]).stdout)

    def attribute(self, name: str) -> str:
        """A file below its folder in /sys/block."""
        return Path(f"/sys/block/ublkb{self.number()}", name).read_text().strip()

    def completed(self) -> int:
        """Requests that were completed so far."""
        words = self.attribute("stat").split()
        return int(words[0]) + int(words[4])

    def mount(self, *, new: bool = True) -> Path:
        """Mounts it, with a new file system."""
        if new:
            run(["mkfs.ext4", "-q", self.path])
        self.devices.mount(self.path.as_posix(), at=self.at)
        self.at_exit()
        return self.at

    def unmount(self) -> None:
        unmount(self.at, self.path.resolve())

    def load(self, name: str = "load") -> "Load":
        """Random writes in its file system that are read back and compared, until `Load.finish`."""
        self.loads.append(Load(self, name))
        return self.loads[-1]

    def checked(self) -> None:
        """The file system, which is not mounted, has no faults."""
        run(["fsck.ext4", "-f", "-n", self.path])


class Load:
    """fio in the background on the file system of a block device."""

    def __init__(self, block: Block, name: str) -> None:
        self.block = block
        self.fio: Fio = fio_files(block.folder, name, block.at, UNTIL_ENDED)
        self.goes_on()

    def goes_on(self, requests: int = 100) -> None:
        """Waits until so many more requests have been completed."""
        wanted = self.block.completed() + requests
        eventually(lambda: self.still() and self.block.completed() >= wanted, 60, f"the load goes on: {self.state()}")

    def still(self) -> bool:
        assert self.fio.process.is_running, f"the load has ended: {self.state()}"
        return True

    def state(self) -> str:
        report = self.fio.report
        return (report.read_text(errors="replace") if report.exists() else "") + self.fio.process.tail()

    def finish(self) -> None:
        """Ends it; it must have met no error, and have read nothing wrong."""
        self.still()
        self.fio.process.popen.terminate()
        self.fio.process.wait(60)
        text = self.state()
        assert not re.search(r"^(verify|crc32c): |err= *[1-9]|error=", text, re.M), f"the load met an error: {text}"
        assert re.search(r"rwts: total=[1-9]|issued rwts", text), f"the load has written nothing: {text}"


def waits(pid: int) -> bool:
    """Whether a process waits for a device."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    return state == "D"


def read_at_once(descriptor: int, length: int = 4096) -> bytes:
    """What is read from a device; nothing if it answers with an error."""
    try:
        return os.pread(descriptor, length, 0)
    except OSError:
        return b""


__all__ = ["Block", "KernelLog", "Load", "read_at_once", "waits"]

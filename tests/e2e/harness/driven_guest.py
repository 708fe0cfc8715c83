"""A Linux guest that a test drives command by command, while the test also does things to what serves its disks.

The test needs the fixture `make_guest`, and the mark `xdist_group("guest")`: one guest runs at a time. /run of the
guest is memory, /run/out a folder of the host."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .clients import fio_command, fio_on_files
from .command import Result
from .guest import BOOT_SECONDS, Guest, slowness
from .waiting import eventually

AGENT = Path(__file__).with_name("guest_agent.sh")
# What the kernel of a guest says when a disk or its file system has failed.
KERNEL_ERRORS = "I/O error|EXT4-fs error"


class Job:
    """A command that runs in a guest."""

    def __init__(self, guest: "DrivenGuest", number: int, command: str) -> None:
        self.guest = guest
        self.number = number
        self.command = command

    def _file(self, suffix: str) -> Path:
        return self.guest.out / f"{self.number}.{suffix}"

    def _text(self, suffix: str) -> str:
        path = self._file(suffix)
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def is_running(self) -> bool:
        return not self._file("code").exists()

    def so_far(self) -> str:
        return f"{self.command}\n{self._text('out')}{self._text('err')}"

    def wait(self, seconds: float = 120) -> Result:
        """Waits for its end, whatever its exit code is."""
        self.guest.wait_for(lambda: not self.is_running, seconds, f"the end of: {self.so_far()}")
        return Result([self.command], int(self._text("code")), self._text("out"), self._text("err"))

    def succeeds(self, seconds: float = 120) -> str:
        """Waits for its end, which must be exit code 0; returns its standard output."""
        result = self.wait(seconds)
        assert result.code == 0, result.describe()
        return result.stdout


class DrivenGuest:
    """One boot of a guest, whose disks (/dev/vda, ...) are volumes over vhost-user."""

    def __init__(self, folder: Path, sockets: list[Path], factor: float, limit: float) -> None:
        """Everything may take `factor` times as long in it."""
        self.factor = factor
        folder.mkdir(exist_ok=True)
        disks = [word for socket in sockets for word in ("--vhost-user", socket)]
        self.guest = Guest(folder, *disks, AGENT, limit=limit * factor)
        self.out = self.guest.out
        self.jobs = 0

    def is_up(self) -> None:
        """Waits until it takes commands."""
        self.wait_for((self.out / "ready").exists, BOOT_SECONDS, "the guest is up")

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Waits for a condition while the guest runs; its end is a failure at once."""

        def holds() -> bool:
            if condition():
                return True
            if not self.guest.process.is_running:
                raise RuntimeError(f"the guest ended: {self.guest.last_words()}")
            return False

        eventually(holds, seconds * self.factor, what)

    def start(self, command: str) -> Job:
        """Starts a command (for bash) in the background."""
        self.jobs += 1
        new = self.out / f"{self.jobs}.new"
        new.write_text(f"set -eo pipefail\n{command}\n")
        new.rename(self.out / f"{self.jobs}.command")
        return Job(self, self.jobs, command)

    def run(self, command: str, *, ok: bool = True, seconds: float = 120) -> Result:
        """Runs a command to its end; it must end with 0 unless `ok` is false."""
        result = self.start(command).wait(seconds)
        if ok:
            assert result.code == 0, result.describe()
        return result

    def start_load(self, name: str, at: str, stop: str, *, seconds: int = 3) -> Job:
        """Starts fio on a file system, again and again until the file `stop` is there: it must meet no error, and find
        what it wrote."""
        report = f"/run/fio-{name}"
        words = fio_command(name, f"--output={report}", f"--directory={at}", *fio_on_files(seconds))
        once = f"{' '.join(words)} && ! grep -E '^(verify|crc32c): |err= *[1-9]' {report}"
        return self.start(f"cd /run; while {{ {once}; }} || {{ cat {report}; exit 1; }}; [ ! -e {stop} ]; do :; done")

    def load(self, name: str, at: str, *, seconds: int = 3) -> None:
        """fio on a file system, for so long."""
        self.start_load(name, at, "/run", seconds=seconds).succeeds()

    def kernel_errors(self) -> str:
        """Lines of the kernel's log about failed requests or file systems."""
        return self.run(f"dmesg | grep -E '{KERNEL_ERRORS}'", ok=False).stdout

    def cut_power(self) -> None:
        """The guest ends at once, in the middle of what it does."""
        self.guest.cut_power()

    def shut_down(self) -> None:
        """Ends the guest when all commands have ended."""
        (self.out / "over").touch()
        self.guest.process.succeeds(60)

    def clean_up(self) -> None:
        self.guest.clean_up()


@pytest.fixture
def make_guest(folder: Path, root: None) -> Iterator[Callable[..., DrivenGuest]]:
    """Boots guests, one after the other: `make_guest([socket])`. For tests of the group "guest" only (conftest.py)."""
    del root
    made: list[DrivenGuest] = []

    def make(sockets: list[Path], limit: float = 250) -> DrivenGuest:
        made.append(DrivenGuest(folder / f"guest{len(made)}", sockets, factor, limit))
        made[-1].is_up()
        return made[-1]

    factor = slowness()
    yield make
    for guest in made:
        guest.clean_up()

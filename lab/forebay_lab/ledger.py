"""What has to be undone, written down before it is done.

A lab that ends undoes its own entries, the last one first. One that was killed leaves a file; `lab clean` finds that
its owner is gone and undoes what it says. Undoing is harmless if the thing was never made, or is gone already.

Invariants:
- An entry is on the disk before the thing that it names exists; that of a process right after its start, which is when
  it has a number.
- A process is named by its number and the time of its start: a number that was given away again is left alone.
- Entries of a lab that still runs are never undone by another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from .experiment import Refused

Kind = Literal["folder", "file", "mount", "loop", "process"]
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Entry:
    """One thing: a path (of a folder, a file, a mount point, the file behind a loop device) or a process."""

    kind: Kind
    path: str = ""
    pid: int = 0
    started: int = 0

    def __str__(self) -> str:
        return f"process {self.pid}" if self.kind == "process" else f"{self.kind} {self.path}"


def started(pid: int) -> int:
    """When a process was started, in ticks since the start of the machine; 0 if there is none."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return 0
    # A zombie has ended; only its parent has not looked.
    return 0 if rest[0] == "Z" else int(rest[19])


class Ledger:
    """The entries of this lab; undoes them when the `with` block ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{time.time_ns()}.jsonl"
        self.entries: list[Entry] = []
        # Whoever sees the file must see whose it is.
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps({"owner": os.getpid(), "started": started(os.getpid())}) + "\n")
        beside.replace(self.path)

    def add(self, entry: Entry) -> None:
        """Notes what is about to be made."""
        self._write(asdict(entry))
        self.entries.append(entry)

    def add_process(self, pid: int) -> Entry:
        """Notes a process that was started just now."""
        entry = Entry("process", pid=pid, started=started(pid))
        self.add(entry)
        return entry

    def undo(self, entry: Entry) -> None:
        """Undoes one thing before the end."""
        undo(entry)
        self.entries.remove(entry)

    def _write(self, line: dict[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = undo_all(self.entries)
        if not failed:
            self.path.unlink()
            return
        said = f"could not be undone: {'; '.join(failed)} (noted in {self.path}; try: lab clean)"
        if error is None:
            raise Refused(said)
        error.add_note(said)  # What happened first is what counts.


def undo_all(entries: list[Entry]) -> list[str]:
    """Undoes everything, the last first; returns what failed and why."""
    failed = []
    for entry in reversed(entries):
        try:
            undo(entry)
        except (OSError, subprocess.SubprocessError) as error:
            failed.append(f"{entry}: {error}")
    return failed


def undo(entry: Entry) -> None:
    """Undoes one thing, if it is there."""
    path = Path(entry.path)
    match entry.kind:
        case "process":
            end(entry.pid, entry.started)
        case "mount":
            while is_mounted(path):
                subprocess.run(["umount", "-l", entry.path], check=True, capture_output=True, timeout=PATIENCE_S)
        case "loop":
            # One that goes with its last mount may be gone by now.
            for device in loops(entry.path):
                subprocess.run(["losetup", "-d", device], check=False, capture_output=True, timeout=PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while loops(entry.path):
                if time.monotonic() > deadline:
                    raise OSError(f"a loop device on {path} is still in use")
                time.sleep(0.05)
        case "folder":
            below = [point for point in mount_points() if point.startswith(f"{real(path)}/")]
            if below:
                raise OSError(f"{', '.join(below)} is mounted in it")
            if path.exists():
                shutil.rmtree(path)
        case "file":
            path.unlink(missing_ok=True)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted there."""
    return real(path) in mount_points()


def real(path: Path) -> str:
    """The path without symbolic links. Its last part is not looked at: what served it may have been killed or hang, and
    then every look at it does."""
    return f"{path.parent.resolve()}/{path.name}"


def mount_points() -> list[str]:
    """Where something is mounted."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # Blanks, tabs, line ends and backslashes are written in octal: proc(5).
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point) for point in points]


def loops(path: str) -> list[str]:
    """Loop devices on a file."""
    shown = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", path],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return shown.stdout.split()


def end(pid: int, since: int) -> None:
    """Ends a process, in an orderly way if it lets us."""
    for what, patience in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, PATIENCE_S)):
        if since == 0 or started(pid) != since:
            return
        try:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, what)
        except ProcessLookupError:
            return
        until = time.monotonic() + patience
        while started(pid) == since and time.monotonic() < until:
            time.sleep(0.02)
    if started(pid) == since:
        raise OSError(f"process {pid} does not end")


@dataclass(frozen=True)
class Left:
    """What a lab left behind."""

    path: Path
    entries: list[Entry]
    running: bool


def left_behind(folder: Path) -> Iterator[Left]:
    """The ledgers of all labs on this machine, the newest first: that of a row before that of its run."""
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem.split("-")[1]), reverse=True):
        owner, entries = (0, -1), []
        for line in path.read_text().splitlines():
            try:
                fields = json.loads(line)
            except json.JSONDecodeError:
                continue  # The last line of a lab that was killed: what it names was not made yet.
            if "owner" in fields:
                owner = (fields["owner"], fields["started"])
            else:
                entries.append(Entry(**fields))
        yield Left(path, entries, started(owner[0]) == owner[1])

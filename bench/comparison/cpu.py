"""Who used the processor during a run: the servers, others on this machine, and how long work had to wait.

- *server CPU*: user and system time of the processes of a target (`/proc/PID/stat`), all threads.
- *pressure*: share of the run in which some runnable task waited for a processor (`some` in `/proc/pressure/cpu`). The
  run itself causes most of it as soon as client and server have more threads than there are cores.
- *foreign*: share of all cores' time that went to processes which are not ours, and that the hypervisor gave to others
  (`steal`). Only this says that a run was disturbed. Kernel threads are left out: what they do here, writing back the
  page cache of a peer for instance, is mostly done for us.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KTHREADD = 2


@dataclass(frozen=True)
class Process:
    """The fields of /proc/PID/stat that matter here. `ticks_children` is of ended children that were waited for."""

    pid: int
    parent: int
    ticks: int
    ticks_children: int


def parse_stat(text: str) -> Process:
    """One line of /proc/PID/stat. The name, in parentheses, may contain blanks and parentheses."""
    pid, rest = text.split(" (", 1)
    fields = rest.rsplit(") ", 1)[1].split()
    return Process(int(pid), int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]))


def parse_pressure(text: str) -> int:
    """Microseconds of `some` since the start of the machine."""
    line = next(line for line in text.splitlines() if line.startswith("some"))
    return int(line.rsplit("total=", 1)[1])


def parse_steal(text: str) -> int:
    """Ticks that the hypervisor gave to others, of all cores, from /proc/stat."""
    fields = next(line for line in text.splitlines() if line.startswith("cpu ")).split()
    return int(fields[8]) if len(fields) > 8 else 0


def foreign_ticks(processes: Iterable[Process], ours: int) -> int:
    """Ticks of all processes but kernel threads and the tree below `ours`.

    The time of a process that ends moves to the parent that waits for it, so the sum does not drop when compilers come
    and go.
    """
    by_pid = {process.pid: process for process in processes}
    inside = {ours}
    outside = {0, KTHREADD}

    def is_ours(process: Process) -> bool:
        path = []
        while process.pid not in inside and process.pid not in outside:
            path.append(process.pid)
            parent = by_pid.get(process.parent)
            if parent is None:
                break
            process = parent
        found = process.pid in inside
        if found:
            inside.update(path)
        return found

    def is_kernel(process: Process) -> bool:
        return KTHREADD in (process.pid, process.parent)

    return sum(p.ticks + p.ticks_children for p in by_pid.values() if not is_kernel(p) and not is_ours(p))


def read_processes() -> list[Process]:
    """All processes that can be seen; those that end meanwhile are left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append(parse_stat((entry / "stat").read_text()))
            except (OSError, ValueError, IndexError):
                continue
    return found


def read_or(path: str, default: str) -> str:
    """A file of /proc that some kernels do not have."""
    try:
        return Path(path).read_text()
    except OSError:
        return default


def server_ticks(pids: Iterable[int]) -> int:
    """CPU time of servers so far, in ticks."""
    return sum(parse_stat(Path(f"/proc/{pid}/stat").read_text()).ticks for pid in pids)


@dataclass(frozen=True)
class Usage:
    """What `Meter` found. Shares are between 0 and 1."""

    elapsed_s: float
    server_cpu_s: float
    pressure: float
    foreign: float


class Meter:
    """Measures from its making to `read`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = tuple(pids)
        self.cores = os.cpu_count() or 1
        self.foreign = self._foreign_ticks()
        self.pressure = self._pressure()
        self.server = server_ticks(self.pids)
        self.began = time.monotonic()

    def read(self) -> Usage:
        """What happened since."""
        elapsed = max(time.monotonic() - self.began, 1e-3)
        server = server_ticks(self.pids) - self.server
        pressure = (self._pressure() - self.pressure) / 1e6 / elapsed
        foreign = max(0, self._foreign_ticks() - self.foreign) / TICKS_PER_S / elapsed / self.cores
        return Usage(elapsed, server / TICKS_PER_S, min(pressure, 1.0), min(foreign, 1.0))

    @staticmethod
    def _pressure() -> int:
        return parse_pressure(read_or("/proc/pressure/cpu", "some total=0"))

    @staticmethod
    def _foreign_ticks() -> int:
        return foreign_ticks(read_processes(), os.getpid()) + parse_steal(read_or("/proc/stat", "cpu 0"))

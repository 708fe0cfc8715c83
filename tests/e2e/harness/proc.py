"""What /proc says of a process."""

import os
import signal
from pathlib import Path

KIB = 1 << 10


def memory(pid: int, field: str = "VmRSS") -> int:
    """Bytes of memory: VmRSS is resident now, VmHWM was at most, VmLck is locked."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * KIB
    raise AssertionError(f"no {field} of process {pid}")


def status(pid: int, field: str) -> str:
    """A line of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))


def descriptors(pid: int) -> int:
    """How many files it has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def kill_if_of(folder: Path, pid: int) -> None:
    """kill -9 of a process that no test waits for, if its command still names this folder."""
    if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
        os.kill(pid, signal.SIGKILL)

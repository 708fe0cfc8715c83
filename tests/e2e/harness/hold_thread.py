"""Holds one thread of a process, as a system call that hangs would: the others go on.

    python -m harness.hold_thread PID NAME UNTIL

Says `held`, and lets it go when the file UNTIL is there. By ptrace(2)."""

import contextlib
import ctypes
import os
import pathlib
import sys
import time
from collections.abc import Iterator

from .process import Process
from .waiting import eventually

E2E = pathlib.Path(__file__).resolve().parents[1]

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
WALL = 0x40000000  # __WALL of waitpid(2): threads of others as well


def name_of(task: pathlib.Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""


@contextlib.contextmanager
def held(folder: pathlib.Path, pid: int, name: str) -> Iterator[None]:
    """Meanwhile this thread of the process stands still."""
    until = folder / f"let-{name}-go"
    command = [sys.executable, "-m", "harness.hold_thread", str(pid), name, str(until)]
    holder = Process(command, folder / "holder.err", cwd=E2E)
    eventually(lambda: "held" in holder.stdout() or not holder.is_running, 30, f"thread {name} is held")
    assert "held" in holder.stdout(), holder.tail()
    try:
        yield
    finally:
        until.touch()
    holder.succeeds()


def main(pid: str, name: str, until: str) -> None:
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    thread = next(int(task.name) for task in tasks if name_of(task) == name)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, thread, None, None) != 0:
        raise SystemExit(f"cannot hold thread {thread}: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, WALL)
    print("held", flush=True)
    while not pathlib.Path(until).exists():
        time.sleep(0.05)
    libc.ptrace(PTRACE_DETACH, thread, None, None)


if __name__ == "__main__":
    main(*sys.argv[1:])

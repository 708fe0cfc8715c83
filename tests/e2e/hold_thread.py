"""Holds one thread of a process, as a system call that hangs would: the others go on.

    hold_thread.py PID NAME

Says `held`, and lets it go when its standard input ends. Standard library only, by ptrace(2)."""

import ctypes
import os
import pathlib
import sys

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
WALL = 0x40000000  # __WALL of waitpid(2): threads of others as well


def name_of(task: pathlib.Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def main(pid: str, name: str) -> None:
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    thread = next(int(task.name) for task in tasks if name_of(task) == name)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, thread, None, None) != 0:
        raise SystemExit(f"cannot hold thread {thread}: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, WALL)
    print("held", flush=True)
    sys.stdin.read()
    libc.ptrace(PTRACE_DETACH, thread, None, None)


main(*sys.argv[1:])

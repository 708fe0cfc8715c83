"""Processes that the lab starts and ends: each noted in the ledger, each with a file of what it says.

They are ended by pid, the last one first, in an orderly way if they let us: a server that is killed with data in its
memory would make the verification after a run fail, and rightly so.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .experiment import Refused
from .ledger import Ledger

POLL_S = 0.05
# What a server may end with when it was asked to: Java's say 128 + SIGTERM, after all that they do at their end.
ORDERLY = (0, 143)
# Bytes of what a server said that are shown if it fails.
TAIL = 1500


@dataclass(frozen=True)
class Server:
    """A process that was started."""

    child: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its number."""
        return self.child.pid

    @property
    def name(self) -> str:
        """Of its program."""
        return Path(str(self.child.args[0])).name if isinstance(self.child.args, list) else "the server"

    def said(self) -> str:
        """Everything it has said so far."""
        return self.log.read_text(errors="replace")


def tail(path: Path) -> str:
    """The end of what was said."""
    return path.read_text(errors="replace").strip()[-TAIL:] if path.exists() else ""


@contextmanager
def server(
    command: Sequence[str],
    log: Path,
    ledger: Ledger,
    ready: Callable[[Server], bool],
    *,
    limit_s: float = 120,
    patience_s: float = 120,
    end: Callable[[Server], None] = lambda running: running.child.terminate(),
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Runs a server until the block ends; `ready` is asked until it says yes, `end` asks it to end.

    Raises `Refused` with what the server said if it ends before, is not ready within `limit_s`, or has not ended in an
    orderly way within `patience_s` of being asked to: it may have had data that only it knew.
    """
    with log.open("wb") as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    entry = ledger.add_process(child.pid)
    running = Server(child, log)
    try:
        wait_until_ready(running, ready, limit_s)
        yield running
        end(running)
        wait_for_end(running, patience_s)
    finally:
        ledger.undo(entry)
        # It may be held in the kernel by a device whose server is ended after this one.
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)


def wait_until_ready(running: Server, ready: Callable[[Server], bool], limit_s: float) -> None:
    """Asks until the answer is yes."""
    deadline = time.monotonic() + limit_s
    while not ready(running):
        if running.child.poll() is not None:
            raise Refused(f"{running.name} ended with {running.child.returncode}: {tail(running.log)}")
        if time.monotonic() > deadline:
            raise Refused(f"{running.name} was not ready after {limit_s:.0f} s: {tail(running.log)}")
        time.sleep(POLL_S)


def wait_for_end(running: Server, patience_s: float) -> None:
    """Waits for an orderly end."""
    try:
        code = running.child.wait(patience_s)
    except subprocess.TimeoutExpired:
        raise Refused(f"{running.name} did not end within {patience_s:.0f} s: {tail(running.log)}") from None
    if code not in ORDERLY:
        raise Refused(f"{running.name} ended with {code}: {tail(running.log)}")


def run(command: Sequence[str], *, limit_s: float = 600) -> str:
    """Runs a command to its end and returns what it printed.

    Raises `Refused` with what it said if it fails, or does not end: it is killed then, but not waited for, because a
    device that hangs may hold it in the kernel.
    """
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        printed, complained = child.communicate(timeout=limit_s)
    except BaseException as error:
        child.kill()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Refused(f"{' '.join(command)} did not end within {limit_s:.0f} s") from None
        raise
    if child.returncode:
        said = (complained or printed).strip()[-TAIL:]
        raise Refused(f"{' '.join(command)} ended with {child.returncode}: {said}")
    return printed


def finished(child: subprocess.Popen[bytes], progress: Callable[[float], None], *, limit_s: float = 6 * 3600) -> str:
    """Waits for a child that ends by itself, telling the seconds meanwhile; returns what it said on stderr.

    Raises `Refused` if it does not end.
    """
    began = time.monotonic()
    while True:
        if time.monotonic() - began > limit_s:
            child.kill()
            raise Refused(f"{child.args!r} did not end within {limit_s:.0f} s")
        try:
            _, said = child.communicate(timeout=POLL_S)
            return bytes(said or b"").decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            progress(time.monotonic() - began)

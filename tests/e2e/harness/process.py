"""Processes that a test starts: with a log of their own, ended by their number, and never outliving the test."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .waiting import SLOWNESS, eventually

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In a child, before exec: the kernel kills it when the thread that started it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_started: list["Process"] = []


def end_below(folder: Path) -> None:
    """Ends the processes that log below a folder: a failed test may have left some, and the next one would get the
    warning about them."""
    for process in [process for process in _started if process.log.is_relative_to(folder)]:
        process.kill()
        _started.remove(process)


class Process:
    """A process in the background. Its two streams are files, so that it never waits for a reader."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        append: bool = False,
        prepare: Callable[[], None] | None = None,
        **options: object,
    ) -> None:
        """`log` gets stderr; stdout is beside it, with the suffix `.out`. `prepare` runs in the child before exec."""
        self.command = [os.fspath(part) for part in command]
        self.log = log
        self.output = log.with_suffix(".out")
        mode = "ab" if append else "wb"

        def before_exec() -> None:
            die_with_parent()
            if prepare:
                prepare()

        with self.log.open(mode) as err, self.output.open("wb") as out:
            self.popen = subprocess.Popen(
                self.command,
                stdin=options.pop("stdin", subprocess.DEVNULL),
                stdout=out,
                stderr=err,
                env=None if env is None else dict(env),
                cwd=cwd,
                preexec_fn=before_exec,  # noqa: PLW1509
                **options,  # type: ignore[call-overload]
            )
        _started.append(self)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def stderr(self) -> str:
        return self.log.read_text(errors="replace")

    def stdout(self) -> str:
        return self.output.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.is_running, f"{self.command[0]} has ended with {self.popen.returncode}: {self.tail()}"
        self.popen.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP, and waits until it has stopped."""
        self.signal(signal.SIGSTOP)
        eventually(lambda: self.state() == "T", 10, "the process stops")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def state(self) -> str:
        """The letter of /proc/PID/stat; empty once it is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][:1]
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def wait(self, seconds: float = 60) -> int:
        """Its exit code, negative for a signal."""
        try:
            return self.popen.wait(seconds * SLOWNESS)
        except subprocess.TimeoutExpired:
            limit = seconds * SLOWNESS
            raise AssertionError(f"{self.command} has not ended after {limit:.0f} s: {self.tail()}") from None

    def succeeds(self, seconds: float = 60) -> str:
        """Waits for its end, which must be exit code 0; returns its standard output."""
        code = self.wait(seconds)
        assert code == 0, f"{self.command} ended with {code}: {self.tail()}"
        return self.stdout()

    def terminate(self, seconds: float = 60) -> int:
        """SIGTERM; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL, whatever state it is in."""
        if self.is_running:
            self.popen.kill()
        self.popen.wait(60)

    def tail(self, lines: int = 20) -> str:
        text = (self.stdout() + self.stderr()).splitlines()
        return "\n".join(text[-lines:])

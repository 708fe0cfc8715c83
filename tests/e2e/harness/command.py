"""The command line `forebay`, run to its end."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import messages
from .messages import Message
from .process import Process, die_with_parent
from .waiting import SLOWNESS

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("FOREBAY", ROOT / "target/debug/forebay")).absolute()


@dataclass
class Result:
    """How a command ended."""

    command: list[str]
    code: int
    stdout: str
    stderr: str
    messages: list[Message] = field(default_factory=list)

    def json(self) -> Any:
        return json.loads(self.stdout)

    def describe(self) -> str:
        return f"{' '.join(self.command)}: exit code {self.code}\n{self.stdout}{self.stderr}"


def run(
    command: Iterable[str | os.PathLike[str]],
    *,
    ok: bool = True,
    seconds: float = 120,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    cwd: Path | None = None,
) -> Result:
    """Runs any program to its end; it must end with 0 unless `ok` is false. Never waits for longer than `seconds`."""
    words = [os.fspath(word) for word in command]
    done = subprocess.run(
        words,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=seconds * SLOWNESS,
        env=None if env is None else dict(env),
        cwd=cwd,
        preexec_fn=die_with_parent,
        check=False,
    )
    result = Result(words, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    if ok:
        assert result.code == 0, result.describe()
    return result


class Forebay:
    """The binary with a fixed environment: the admin socket of a daemon, a state directory."""

    def __init__(self, folder: Path, *, admin: Path | None = None, binary: Path = BINARY) -> None:
        self.folder = folder
        self.binary = binary
        # In front of the command: what enters another root.
        self.wrapper: list[str] = []
        # Nothing of the machine's own daemon is used or changed.
        state = folder / "run-state"
        self.env = {**os.environ, "FOREBAY_MESSAGES": "json", "STATE_DIRECTORY": str(state), "LC_ALL": "C.UTF-8"}
        self.env["FOREBAY_ADMIN"] = str(admin or folder / "no-daemon.sock")
        self.env.pop("JOURNAL_STREAM", None)

    def __call__(
        self, *args: object, ok: bool = True, seconds: float = 120, stdin: str | bytes | None = None
    ) -> Result:
        """Runs `forebay ARGS...`, which must succeed unless `ok` is false."""
        result = run(
            [*self.wrapper, self.binary, *map(str, args)],
            ok=False,
            seconds=seconds,
            env=self.env,
            stdin=stdin,
            cwd=self.folder,
        )
        result.messages = messages.parse(result.stderr)
        assert "panicked at" not in result.stderr, f"a panic: {result.describe()}"
        assert result.code >= 0, f"killed by a signal: {result.describe()}"
        if ok:
            assert result.code == 0, result.describe()
        return result

    def json(self, *args: object, **options: Any) -> Any:
        """Runs `forebay ARGS... --json`; what it prints, decoded."""
        return self(*args, "--json", **options).json()

    def refused(
        self, id: str, *args: object, code: int | tuple[int, ...] = 1, mentions: Iterable[object] = (), **options: Any
    ) -> Message:
        """`forebay ARGS...` must end with this exit code and a message of this id that mentions the values.

        Values are what survives a rewording: names, paths, sizes, options, commands of the hint."""
        result = self(*args, ok=False, **options)
        codes = (code,) if isinstance(code, int) else code
        assert result.code in codes, f"expected exit code {code}: {result.describe()}"
        return messages.check(id, result.messages, mentions, " ".join(map(str, args)))

    def start(self, *args: object, name: str = "command", **options: Any) -> Process:
        """Starts `forebay ARGS...` in the background."""
        return Process(
            [*self.wrapper, self.binary, *map(str, args)],
            self.folder / f"{name}.err",
            env=self.env,
            cwd=self.folder,
            **options,
        )

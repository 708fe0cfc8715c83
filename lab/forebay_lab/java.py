"""The lab's Java programs: built once from `lab/java`, then told what to do line by line.

A program answers each line of `key=value` words with a line of JSON. It ends when its standard input does, so none is
left behind by a lab that was killed; the ledger knows them all the same.

The build is kept in `target/lab-java` and made again if a source has changed. What it needs comes from Maven's central
repository, in pinned versions, the first time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness

from .experiment import Lies, Refused, Work
from .ledger import Entry, started
from .servers import run, tail

HOME = harness.ROOT / "lab/java"
TARGET = harness.ROOT / "target/lab-java"
NEEDS = ("mvn", "javac", "java")
# A first build downloads about 150 MB.
BUILD_LIMIT_S = 1200
POLL_S = 0.2

Answer = dict[str, float | str | None]


def fingerprint(home: Path) -> str:
    """Of everything that is built."""
    found = hashlib.sha256()
    for path in sorted([*home.rglob("pom.xml"), *home.rglob("src/**/*")]):
        if path.is_file():
            found.update(f"{path.relative_to(home)}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def build() -> None:
    """Builds what has changed; raises `Refused` with what Maven says if that fails."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, built = fingerprint(HOME), TARGET / "built"
        if built.exists() and built.read_text() == wanted:
            return
        # One that fails leaves nothing to be used.
        built.unlink(missing_ok=True)
        words = ["mvn", "-q", "-B", "-ntp", "-f", str(HOME), f"-Dlab.target={TARGET}", "clean", "package"]
        run(words, limit_s=BUILD_LIMIT_S)
        built.write_text(wanted)


def version(module: str, artifact: str) -> str:
    """Of a library that a module needs, as its pom.xml pins it."""
    text = (HOME / module / "pom.xml").read_text()
    found = re.search(rf"<artifactId>{re.escape(artifact)}</artifactId>\s*<version>([^<]+)</version>", text)
    return found[1] if found else "of unknown version"


def class_path(module: str) -> str:
    """Of a module with everything it needs."""
    return f"{TARGET}/{module}/{module}-1.jar:{TARGET}/{module}/lib/*"


def command(module: str, main: str, options: Mapping[str, str | int], jvm: Sequence[str] = ()) -> list[str]:
    """Command line of a program of the lab."""
    return tool(module, f"forebay.lab.{main}", [f"{key}={value}" for key, value in options.items()], jvm)


def tool(module: str, main: str, words: Sequence[str], jvm: Sequence[str] = ()) -> list[str]:
    """Command line of any class of a module, or of what it needs."""
    return ["java", *jvm, "-cp", class_path(module), main, *words]


@dataclass
class Program:
    """One that runs."""

    child: subprocess.Popen[bytes]
    log: Path
    greeting: Answer
    unread: bytes = b""

    def ask(self, words: Mapping[str, str | float], limit_s: float) -> Answer:
        """Its answer to a line.

        Raises `Lies` if it found wrong data, `Refused` if it failed or does not answer in `limit_s`.
        """
        line = " ".join(f"{key}={value}" for key, value in words.items())
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{line}\n".encode())
            self.child.stdin.flush()
        except BrokenPipeError:
            raise Refused(f"{self.name} has ended: {tail(self.log)}") from None
        return self.answer(limit_s)

    @property
    def name(self) -> str:
        """Of its main class."""
        assert isinstance(self.child.args, list)
        return next(str(word) for word in self.child.args if str(word).startswith("forebay.lab."))

    def answer(self, limit_s: float) -> Answer:
        """Waits for a line."""
        deadline = time.monotonic() + limit_s
        assert self.child.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.child.stdout, selectors.EVENT_READ)
            while b"\n" not in self.unread:
                if time.monotonic() > deadline:
                    raise Refused(f"{self.name} did not answer in {limit_s:.0f} s: {tail(self.log)}")
                if waiting.select(POLL_S):
                    more = os.read(self.child.stdout.fileno(), 65536)
                    if not more:
                        raise Refused(f"{self.name} has ended: {tail(self.log)}")
                    self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        return parse(line.decode(), self.name, self.log)


def parse(line: str, name: str, log: Path) -> Answer:
    """An answer; raises what it says went wrong."""
    try:
        found: Answer = json.loads(line)
    except json.JSONDecodeError:
        raise Refused(f"{name} answers {line!r}: {tail(log)}") from None
    if "wrong" in found:
        raise Lies(f"{name}: {found['wrong']}")
    if "error" in found:
        raise Refused(f"{name}: {found['error']}: {tail(log)}")
    return found


@contextmanager
def program(words: Sequence[str], name: str, work: Work, *, limit_s: float = 60) -> Iterator[Program]:
    """Runs a program (a `command`) until the block ends; what else it says goes to `NAME.log` of the row's folder."""
    log = work.folder / f"{name}.log"
    with log.open("wb") as file:
        child = subprocess.Popen(list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)
    entry = Entry("process", pid=child.pid, started=started(child.pid))
    work.ledger.add(entry)
    running = Program(child, log, {})
    try:
        running.greeting = running.answer(limit_s)
        yield running
    finally:
        work.ledger.undo(entry)
        child.communicate()

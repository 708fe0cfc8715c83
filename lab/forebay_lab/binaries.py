"""The project's own programs, built as people build them before anything is measured.

The environment names others: FOREBAY, FOREBAY_NULL, FLASHCACHE_MODEL and FLASH_BENCH, which are then used as they are.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import harness

from .experiment import Binary, Refused


@dataclass(frozen=True)
class Built:
    """Where a program comes from."""

    package: str
    variable: str
    is_example: bool = False

    def arguments(self, name: str) -> list[str]:
        """What tells cargo to build it."""
        return ["-p", self.package, *(("--example", name) if self.is_example else ())]


FROM = {
    Binary.FOREBAY: Built("forebay-cli", "FOREBAY"),
    Binary.NULL: Built("forebay-lab-host", "FOREBAY_NULL"),
    Binary.MODEL: Built("forebay-flashcache-model", "FLASHCACHE_MODEL"),
    Binary.FLASH_BENCH: Built("forebay-flashcache-model", "FLASH_BENCH", is_example=True),
}


def path(binary: Binary) -> Path:
    """Where it is, or will be."""
    folder = harness.ROOT / ("target/release/examples" if FROM[binary].is_example else "target/release")
    return Path(os.environ.get(FROM[binary].variable, folder / binary.value))


def hashes(binaries: Sequence[Binary]) -> dict[str, str]:
    """What is measured, told apart from every other build."""
    return {binary.value: hashlib.sha256(path(binary).read_bytes()).hexdigest()[:16] for binary in binaries}


def build(binaries: Sequence[Binary]) -> None:
    """Builds what is not named by the environment; takes a second if nothing has changed.

    Raises `Refused` if one is not there afterwards.
    """
    own = [binary for binary in binaries if FROM[binary].variable not in os.environ]
    # With an example cargo builds nothing else of what is named beside it.
    for together in (
        [binary for binary in own if not FROM[binary].is_example],
        *([binary] for binary in own if FROM[binary].is_example),
    ):
        if not together:
            continue
        words = [word for binary in together for word in FROM[binary].arguments(binary.value)]
        command = ["cargo", "build", "--release", "--locked", *words]
        try:
            done = subprocess.run(command, cwd=harness.ROOT, check=False)
        except FileNotFoundError:
            raise Refused("there is no cargo: scripts/setup says how to get it") from None
        if done.returncode:
            raise Refused(f"{' '.join(command)} failed")
    for binary in binaries:
        if not path(binary).exists():
            raise Refused(f"{path(binary)}, which {FROM[binary].variable} names, does not exist")

"""The project's own programs, built as people build them before anything is measured.

The environment names others: FOREBAY and FLASHCACHE_MODEL, which are then used as they are.
"""

from __future__ import annotations

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


FROM = {
    Binary.FOREBAY: Built("forebay-cli", "FOREBAY"),
    Binary.MODEL: Built("forebay-flashcache-model", "FLASHCACHE_MODEL"),
}


def path(binary: Binary) -> Path:
    """Where it is, or will be."""
    return Path(os.environ.get(FROM[binary].variable, harness.ROOT / "target/release" / binary.value))


def build(binaries: Sequence[Binary]) -> None:
    """Builds what is not named by the environment; takes a second if nothing has changed.

    Raises `Refused` if one is not there afterwards.
    """
    own = [FROM[binary].package for binary in binaries if FROM[binary].variable not in os.environ]
    if own:
        command = ["cargo", "build", "--release", "--locked", *(word for name in own for word in ("-p", name))]
        try:
            done = subprocess.run(command, cwd=harness.ROOT, check=False)
        except FileNotFoundError:
            raise Refused("there is no cargo: scripts/setup says how to get it") from None
        if done.returncode:
            raise Refused(f"{' '.join(command)} failed")
    for binary in binaries:
        if not path(binary).exists():
            raise Refused(f"{path(binary)}, which {FROM[binary].variable} names, does not exist")

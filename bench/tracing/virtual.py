"""The engine in virtual time and exact policies: what `crates/forebay-core/examples/traces` prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness as h

# Column of the engine's default policy, and all of them.
ENGINE = ("fifo", "lru", "s3fifo")


def example(package: str, name: str, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Builds and runs an example that prints JSON objects, one in a line; hands them out as they come."""
    command = ["cargo", "run", "--release", "--locked", "--quiet", "--package", package, "--example", name, "--"]
    with subprocess.Popen([*command, *arguments], cwd=h.ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line)
    if child.returncode != 0:
        raise h.Failure(f"the example {name} ended with exit code {child.returncode}")


def rows(shares: Sequence[int], files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """A row for each trace and share, see the example."""
    return example("forebay-core", "traces", [",".join(map(str, shares)), *map(str, files)])

"""Caches that an older daemon left behind still open: `forebay check`, a start, every byte, writing back, an orderly
stop, and `forebay check` once more. The archives, and how they are made: tests/golden-caches."""

import os
import sys
from pathlib import Path

import pytest
from harness.command import BINARY, ROOT, run

GOLDEN = ROOT / "tests/golden-caches"
KINDS = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
# So that they are opened by several workers.
SHARES = [KINDS[at::3] for at in range(3)]


@pytest.mark.parametrize("kinds", SHARES, ids=["first", "second", "third"])
def test_old_caches_open_as_they_were_left(folder: Path, kinds: list[str]) -> None:
    assert len(KINDS) >= 17
    env = {**os.environ, "TMPDIR": str(folder)}
    opened = run([sys.executable, GOLDEN / "golden.py", "open", BINARY, *kinds], env=env, seconds=180)
    assert opened.stdout.count(": ok") == len(kinds), opened.describe()

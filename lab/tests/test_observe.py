"""A client is watched to its end, and one that does not end is ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay_lab.experiment import Refused
from forebay_lab.ledger import Ledger
from forebay_lab.observe import Observed, observe

DEVICE = {"reads": 0.0, "writes": 0.0, "read_bytes": 0.0, "written_bytes": 0.0, "server_s": 0.0}


def watch(tmp_path: Path, program: str, limit_s: float) -> Observed:
    with Ledger(tmp_path / "ledger") as ledger:
        return observe(
            [sys.executable, "-c", program],
            lambda line: {"n": float(line)} if line.strip().isdigit() else None,
            lambda: DEVICE,
            ledger,
            lambda _: None,
            limit_s,
        )


def test_lines_become_samples(tmp_path: Path) -> None:
    seen = watch(tmp_path, "print('begins', 1, 2, sep='\\n')", 60)
    assert seen.printed == ["begins", "1", "2"] and seen.samples["n"].tolist() == [1, 2]


def test_what_fails_and_what_hangs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="ended with 3: no"):
        watch(tmp_path, "print('no'); raise SystemExit(3)", 60)
    with pytest.raises(Refused, match="had not ended after 1 s: waits"):
        watch(tmp_path, "import time; print('waits', flush=True); time.sleep(600)", 1)

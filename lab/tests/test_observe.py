"""A client is watched to its end, and one that does not end is ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from forebay_lab import servers
from forebay_lab.experiment import Refused
from forebay_lab.ledger import Ledger
from forebay_lab.observe import CACHE, Observed, cache_sample, means, observe

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


def test_commands_that_hang_are_refused() -> None:
    with pytest.raises(Refused, match="did not end within"):
        servers.run(["sleep", "60"], limit_s=0.2)
    child = subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE)
    with pytest.raises(Refused, match="did not end within"):
        servers.finished(child, lambda _: None, limit_s=0.2)
    child.wait(10)


def test_a_window_without_reads_has_no_share_of_hits() -> None:
    rates = dict.fromkeys(("asked_blocks", "found_blocks", *(f"{name}_mib" for name in TRAFFIC)), 0.0)
    quiet = cache_sample(3.0, rates)
    busy = cache_sample(3.0, rates | {"asked_blocks": 8.0, "found_blocks": 6.0})
    assert set(quiet) == set(CACHE) and busy["hits"] == 0.75
    assert means(pd.DataFrame([quiet, busy]))["hits"] == 0.75


TRAFFIC = ("disk_read", "disk_written", "flash_written")

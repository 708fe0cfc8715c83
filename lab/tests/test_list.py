"""What there is can be listed before the lab is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from forebay_lab.cli import catalogue

LAB = Path(__file__).resolve().parent.parent


def test_the_list_is_what_the_experiments_say() -> None:
    assert (LAB / "list.txt").read_text() == catalogue(), "mend it: lab/lab list | grep -v ': ' > lab/list.txt"
    assert max(map(len, catalogue().splitlines())) <= 80


def test_it_is_printed_where_nothing_is_installed(tmp_path: Path) -> None:
    for name in ("lab", "list.txt", "requirements.txt"):
        (tmp_path / "lab").mkdir(exist_ok=True)
        shutil.copy(LAB / name, tmp_path / "lab" / name)
    done = subprocess.run([tmp_path / "lab/lab", "list"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, catalogue())
    assert "target/lab-venv" in done.stderr and not (tmp_path / "target").exists()

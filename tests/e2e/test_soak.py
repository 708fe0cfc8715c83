"""A minute of the soak (scripts/soak): everything at once, every byte judged.

SEED=N for another seed, MINUTES=N for longer. scripts/soak with the seed of a failure keeps its folder."""

import os
import sys
from pathlib import Path

import pytest
from harness.command import BINARY, ROOT, run
from harness.devices import Devices
from harness.mounts import abort_fuse

SEED = int(os.environ.get("SEED", "20261"))
MINUTES = float(os.environ.get("MINUTES", "1"))


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.limit(MINUTES * 60 + 300)
def test_everything_at_once(devices: Devices, folder: Path) -> None:
    devices.at_exit(lambda: abort_fuse(folder))
    print(f"seed {SEED}, {MINUTES} minutes")
    command = [sys.executable, ROOT / "scripts/soak", "--minutes", str(MINUTES), "--seed", str(SEED)]
    result = run([*command, "--forebay", BINARY, "--folder", folder / "soak"], ok=False, seconds=MINUTES * 60 + 240)
    print(result.stdout[-3000:])
    assert result.code == 0, f"seed {SEED}: {result.stderr}{ends_of_logs(folder)}"


def ends_of_logs(folder: Path) -> str:
    logs = sorted(folder.glob("soak/era-*/daemon.log"))
    return "\n".join(f"{log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]) for log in logs)

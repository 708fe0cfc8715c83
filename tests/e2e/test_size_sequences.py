"""Random sequences of growing and shrinking a pool, by size and by device, with files and block devices and sizes
that are no multiple of anything, and a start between them, orderly or after kill -9: each start opens the pool on the
devices that it had, and nothing that the daemon has written into its configuration is refused or changed by a reload.

SEQUENCES=... FIRST=... for others."""

import os
from pathlib import Path

import pytest
from harness.clients import need
from harness.daemon import Daemon
from harness.devices import Devices, sparse
from harness.size_sequences import Sequence

FIRST = int(os.environ.get("FIRST", "203"))
SEQUENCES = int(os.environ.get("SEQUENCES", "4"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEQUENCES))
def test_each_start_has_the_devices(daemon: Daemon, devices: Devices, folder: Path, root: None, seed: int) -> None:
    del root
    need("losetup")
    blocks = [devices.loop(sparse(folder / f"disk{size}", size)) for size in (20971520, 13000192)]
    Sequence(daemon, seed, blocks).run(changes=8)

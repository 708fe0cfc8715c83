"""A mirrored cache is killed under writes while a new device is being filled. Each time the rebuild begins again by
itself, and ends; every acknowledged write is there."""

import time
from pathlib import Path

import pytest
from harness.clients import fio_speaks_nbd, need
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.process import Process
from harness.waiting import eventually

CONFIG = """[pool.safe]
devices = [{{ path = "{folder}/a.img", size = "64MiB" }}, {{ path = "{folder}/b.img", size = "64MiB" }}]
mirror = true
cache_allocation = "sparse"

[volume.vol]
pool = "safe"
backing = "file:{folder}/vol.img"
exports = ["{nbd}"]

[volume.more]
pool = "safe"
backing = "file:{folder}/more.img"
exports = ["{more}"]
"""


def busy(daemon: Daemon) -> Process:
    """Writes to volume `more`, until the server is gone."""
    shape = ["--iodepth=16", "--rw=randwrite", "--bs=64k", "--size=128M", "--time_based", "--runtime=600"]
    command = ["fio", "--name=busy", "--ioengine=nbd", f"--uri={daemon.nbd('more')}", *shape]
    return Process(command, daemon.folder / "fio.err", cwd=daemon.folder)


@pytest.mark.heavy
def test_killed_rebuild_begins_again(daemon: Daemon, folder: Path) -> None:
    need("fio")
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")
    for name in ("vol", "more"):
        sparse(folder / f"{name}.img", 128 * MIB)
    daemon.configure(CONFIG.format(folder=folder, nbd=daemon.nbd(), more=daemon.nbd("more")))
    oracle = daemon.oracle()
    daemon.start()
    for round in range(1, 7):
        load = oracle.load(seed=round)
        time.sleep(0.5)  # whatever it writes
        daemon.kill()
        load.succeeds()
        # An empty device in the place of one of the two: it is filled from the start on.
        (folder / "b.img").unlink()
        sparse(folder / "b.img", 64 * MIB)
        daemon.start()
        more = busy(daemon)
        time.sleep((round * 15 % 9 + 1) / 10)  # at any moment of the rebuild
        daemon.kill()
        more.wait()  # it has lost its server
        daemon.start()
        whole = lambda: daemon.pool("safe")["mirror"] == "whole"  # noqa: E731
        eventually(whole, 60, f"the rebuild ends in round {round}")
        oracle.verify(f"in round {round}")
    daemon.stop()

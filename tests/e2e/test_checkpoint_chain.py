"""A cache that is large enough for increments of checkpoints: killed while there is a chain of them, it is sound, and
serves what was written; after an orderly stop the checkpoint is whole."""

from pathlib import Path

import pytest
from harness.clients import fio_nbd, need
from harness.daemon import Daemon
from harness.devices import sparse
from harness.waiting import eventually

CONFIG = """
[pool.chained]
devices = [{{ path = "{folder}/cache.img", size = "64GiB" }}]
cache_allocation = "sparse"

[volume.db]
pool = "chained"
backing = "file:{folder}/db.img"
exports = ["nbd+unix:///db?socket={folder}/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


def fio(daemon: Daemon, size: int, *options: str) -> None:
    shape = ["--iodepth=16", "--bs=64k", "--rw=randwrite", f"--size={size}M"]
    fio_nbd(daemon.folder, "chain", daemon.nbd("db"), *shape, *options).succeeds()


def increments(daemon: Daemon) -> int:
    """Blocks of increments that the newest superblock names, while the daemon does not run."""
    superblocks = daemon.json("inspect", daemon.folder / "cache.img")["superblocks"]
    copies = [copy for copy in superblocks if "generation" in copy]
    return max(copies, key=lambda copy: copy["generation"])["increment_blocks"]


def is_sound(daemon: Daemon) -> None:
    assert daemon.json("check", daemon.folder / "cache.img")["ok"]


def checkpoints(daemon: Daemon) -> int:
    return daemon.api.get("/v1/stats")["volumes"]["db"]["checkpoints"]


def write_past_the_cache(daemon: Daemon, size: int) -> None:
    """Large enough to be noted as intents, which the next checkpoint records; a resize of the volume asks for one."""
    before = checkpoints(daemon)
    daemon("set", "db", "mode=writearound")
    fio(daemon, size, "--do_verify=0")
    daemon("volume", "resize", "db", f"{1000 - size}MiB")
    eventually(lambda: checkpoints(daemon) > before, 60, "a checkpoint")
    daemon("set", "db", "mode=writeback")


@pytest.mark.heavy
def test_killed_while_checkpoint_is_a_chain(daemon: Daemon, folder: Path) -> None:
    need("fio")
    try:
        sparse(folder / "probe", 64 << 30).unlink()
    except OSError:
        pytest.skip("this file system has no files of 64 GiB")
    sparse(folder / "db.img", 1 << 30)
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    fio(daemon, 32, "--do_verify=0")
    for size in (32, 48):  # the second time after other writes
        write_past_the_cache(daemon, size)
        fio(daemon, size, "--do_verify=0")
        daemon.kill()
        assert increments(daemon) > 0, "there is no chain"
        is_sound(daemon)
        daemon.start()
        fio(daemon, size, "--verify_only=1")
    daemon.stop()
    assert increments(daemon) == 0, "there is a chain after an orderly stop"
    is_sound(daemon)
    daemon.start()
    fio(daemon, 48, "--verify_only=1")
    daemon.stop()

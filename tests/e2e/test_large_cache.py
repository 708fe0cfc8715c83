"""A cache of 4 TiB opens, takes checkpoints and is opened again with the least memory for requests that can be
configured, while a client has as much in flight as it may."""

from pathlib import Path

import pytest
from harness.clients import fio_nbd, need
from harness.daemon import Daemon
from harness.devices import sparse

CONFIG = """
[pool.large]
devices = [{{ path = "{folder}/cache.img", size = "4TiB" }}]
cache_allocation = "sparse"
buffer_memory = "192MiB"

[volume.db]
pool = "large"
backing = "file:{folder}/db.img"
exports = ["nbd+unix:///db?socket={folder}/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


def is_right(daemon: Daemon, *options: str) -> None:
    shape = ["--iodepth=64", "--bs=1M", "--rw=write", "--size=192M"]
    fio_nbd(daemon.folder, "large", daemon.nbd("db"), *shape, *options).succeeds()
    assert not daemon.alarms()


@pytest.mark.heavy
def test_cache_of_4_tib_opens_again(daemon: Daemon, folder: Path) -> None:
    need("fio")
    try:
        sparse(folder / "probe", 4 << 40).unlink()
    except OSError:
        pytest.skip("this file system has no files of 4 TiB")
    sparse(folder / "db.img", 1 << 30)
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    is_right(daemon, "--do_verify=1")
    daemon.kill()
    daemon.start()
    is_right(daemon, "--verify_only=1")
    daemon.restart()
    is_right(daemon, "--verify_only=1")
    daemon.stop()

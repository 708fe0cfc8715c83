"""kill -9 in the middle of `pool replace` of a failed cache. The next start serves the volume, without the cache as
before or with the new one. What was lost is shown until the operator has given it up, and the same command can be
given again. The cache is a loop device that ends early.

DELAYS=... for other moments: milliseconds after the command was given, or, with a c before them, after the
configuration has named the new device."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.loop_end import end_at
from harness.pools import Filled, closely
from harness.process import Process
from harness.waiting import eventually

DELAYS = os.environ.get("DELAYS", "15 c0 c20 c45 c90").split()
FEWER = os.environ.get("FEWER", "c0 c45 c90").split()
CONFIG = """[pool.fast]
devices = ["{cache}"]
[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{nbd}"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


@dataclass
class Drill:
    """Pool `fast` whose cache has failed, with dirty data in it (`lossy`) or without."""

    daemon: Daemon
    cache: Path
    lossy: bool
    data: Filled

    def check(self, what: str) -> str:
        """It is served as it must be: `without` the cache, or with the `new` one."""
        pool: Any = self.daemon.pool("fast")
        lost, failed = pool["lost_bytes"], pool["cache_failed"]
        alarms = [alarm["condition"] for alarm in self.daemon.alarms()]
        assert ("cache.failed" in alarms) == failed, (what, alarms)
        assert "pool.failed" not in alarms and "volume.failed" not in alarms, (what, alarms)
        right = self.data.right()
        if not self.lossy:
            assert lost == 0 and right == self.data.count, f"{what}: {lost} lost, {right} right"
        elif lost:
            is_shown = failed and "block.lost" in alarms
            assert is_shown and right == self.data.count, f"{what}: {lost} lost, {right} right, {alarms}"
        return "without" if failed else "new"

    def names(self, device: Path) -> bool:
        """Whether the configuration names the device."""
        return str(device) in self.daemon.config_path.read_text()

    def killed(self, moment: str, device: Path, command: list[str]) -> Process:
        """Gives the command, and kills the daemon at the moment."""
        asked = self.daemon.forebay.start(*command, name="replace")
        if moment.startswith("c"):
            closely(lambda: self.names(device) or not asked.is_running, 40, "the configuration names the new device")
            assert self.names(device), asked.tail()
        time.sleep(int(moment.lstrip("c")) / 1000)
        self.daemon.kill()
        return asked


@pytest.fixture
def make_drill(daemon: Daemon, devices: Devices, folder: Path, root: None) -> Callable[[bool], Drill]:
    del root

    def make(lossy: bool) -> Drill:
        sparse(folder / "db.img", 16 * MIB)
        cache = devices.loop(sparse(folder / "c.img", 32 * MIB))
        daemon.configure(CONFIG.format(cache=cache, folder=folder, nbd=daemon.nbd("db")))
        daemon.start()
        daemon("pool", "open", "fast", "--overwrite")
        data = Filled(daemon, "db", blocks=512)
        data.write()
        if not lossy:
            daemon("flush", "db")
        end_at(cache, 4096)
        failed = lambda: (pool := daemon.pool("fast"))["cache_failed"] and not pool["dirty_bytes"]  # noqa: E731
        eventually(failed, 60, "the cache has failed")
        assert (daemon.pool("fast")["lost_bytes"] > 0) == lossy
        return Drill(daemon, cache, lossy, data)

    return make


def is_replaced(drill: Drill, moment: str, device: Path, *options: str) -> None:
    """A replacement by DEVICE is killed, and the pool goes on; given again, it succeeds."""
    daemon = drill.daemon
    words = ["pool", "replace", "fast", "--device", f"{device}:32MiB" if not device.is_block_device() else str(device)]
    command = [*words, *options, *(["--discard-lost"] if drill.lossy else [])]
    asked = drill.killed(moment, device, command)
    done = asked.wait() == 0
    daemon.start()
    state = drill.check("after kill -9")
    assert not done or state == "new", "it was replaced"
    daemon.kill()  # and once more, before anything else is asked
    daemon.start()
    assert drill.check("after kill -9, and another start") == state
    if state == "without":
        daemon(*command)
    assert drill.check("replaced") == "new" and daemon.pool("fast")["lost_bytes"] == 0, daemon.pool("fast")
    daemon.restart()
    assert drill.check("started again") == "new"
    daemon.stop()


@pytest.mark.parametrize("moment", DELAYS)
def test_nothing_was_lost(make_drill: Callable[[bool], Drill], folder: Path, moment: str) -> None:
    """The failed cache had no dirty data; the new one is a file."""
    is_replaced(make_drill(False), moment, folder / "new.img")


@pytest.mark.parametrize("moment", FEWER)
def test_dirty_data_was_lost(make_drill: Callable[[bool], Drill], folder: Path, moment: str) -> None:
    is_replaced(make_drill(True), moment, folder / "new.img")


@pytest.mark.parametrize("moment", FEWER)
def test_dirty_data_was_lost_and_a_new_device(
    make_drill: Callable[[bool], Drill], devices: Devices, folder: Path, moment: str
) -> None:
    """The new cache is a block device."""
    is_replaced(make_drill(True), moment, devices.loop(sparse(folder / "new.raw", 32 * MIB)), "--overwrite")

"""kill -9 in the middle of writes, again and again: every acknowledged write is there, and a lost one stays lost.

The cache is smaller than the volume, so destage and reclaim are killed too. KILLS=50 for the long run."""

import os
import random
import time
from collections.abc import Callable

import pytest
from harness.daemon import RunVolume

MODES = ["writeback", "writeback", "writeonly", "writethrough", "writearound"]
KILLS = int(os.environ.get("KILLS", "5"))


@pytest.mark.heavy
@pytest.mark.limit(60 + 20 * KILLS)
def test_acknowledged_writes_survive_kill(make_volume: Callable[..., RunVolume]) -> None:
    volume = make_volume(cache_size="32MiB")
    volume.make_backing(96 << 20)
    oracle = volume.oracle()
    moments = random.Random(KILLS)
    for round in range(KILLS):
        volume.start("--mode", MODES[round % len(MODES)], "--set", "dirty_low_pct=5")
        if round:
            oracle.verify(f"after kill {round}")
        load = oracle.load(seconds=60, seed=round + 1)
        time.sleep(moments.uniform(0, 3))
        assert load.is_running, load.tail()
        volume.kill()
        load.succeeds()

    volume.start()
    oracle.verify("after the last kill")
    oracle.write(seconds=2, seed=0)
    volume.stop()
    volume.forebay("check", volume.cache, "--state-dir", volume.state_dir)
    volume.start()
    oracle.verify("after an orderly stop")
    volume.stop()

"""discard_freed: what holds nothing is punched out of a cache file, and kill -9 beside that loses nothing."""

from collections.abc import Callable

import pytest
from harness.api import Api
from harness.daemon import RunVolume
from harness.devices import MIB
from harness.waiting import eventually

FULL = 48 * MIB


def start(volume: RunVolume) -> None:
    volume.start("--admin", volume.folder / "admin.sock", "--set", "dirty_low_pct=5", "--set", "discard_freed=on")


def stats(volume: RunVolume) -> dict[str, int]:
    return Api(volume.folder / "admin.sock").get("/v1/stats")["volumes"]["vol"]


@pytest.mark.heavy
def test_discards_free_room_and_lose_nothing(make_volume: Callable[..., RunVolume]) -> None:
    volume = make_volume(cache_size="48MiB")
    volume.make_backing(96 * MIB)
    start(volume)
    eventually(lambda: stats(volume)["cache_discards"] > 20, 60, "an empty cache is discarded")
    eventually(lambda: volume.cache.stat().st_blocks * 512 < FULL * 3 // 4, 60, "discards free room of an empty cache")
    volume.kill()

    oracle = volume.oracle()
    for seed in (1, 2, 3):
        start(volume)
        if seed > 1:
            oracle.verify(f"after kill {seed - 1}")
        before = stats(volume)["window_extensions"]
        load = oracle.load(seed=seed)

        def is_discarding(before: int = before) -> bool:
            now = stats(volume)
            return now["window_extensions"] - before > 20 and now["cache_discards"] > 20

        eventually(is_discarding, 90, "segments are freed, discarded and used again")
        assert stats(volume)["cache_discard_errors"] == 0
        volume.kill()
        load.succeeds()
    assert volume.forebay.json("check", volume.cache, "--state-dir", volume.state_dir)["ok"]
    volume.start()
    oracle.verify("after the last kill")
    volume.stop()

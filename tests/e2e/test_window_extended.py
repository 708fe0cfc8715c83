"""kill -9 while the append window is extended between checkpoints, then damage to copies of the extension: nothing is
lost, and `forebay check` names the damage. With both copies of a slot gone the segments show which of them were
added."""

from collections.abc import Callable

import pytest
from harness.api import Api
from harness.cache_damage import flip
from harness.daemon import RunVolume
from harness.devices import MIB
from harness.superblock import BLOCK
from harness.waiting import eventually


def stats(volume: RunVolume) -> dict[str, int]:
    return Api(volume.folder / "admin.sock").get("/v1/stats")["volumes"]["vol"]


def kill_while_extending(volume: RunVolume) -> None:
    """Starts a load, and kills the daemon when the window was extended twenty times."""
    before = stats(volume)
    load = volume.oracle().load()

    def was_extended() -> bool:
        now = stats(volume)
        extended = now["window_extensions"] - before["window_extensions"]
        # What the reads before led to extends it as well: the writer has to be at work.
        return extended > 20 and now["writes"] > before["writes"]

    eventually(was_extended, 90, "the window is extended")
    volume.kill()
    load.succeeds()


def start(volume: RunVolume) -> None:
    volume.start("--admin", volume.folder / "admin.sock", "--set", "dirty_low_pct=5")


def is_named(blocks: list[int], findings: list[dict]) -> None:
    for block in blocks:
        assert any(f"block {block}" in str(finding) for finding in findings), f"block {block}: {findings}"


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", [[[4], [24], [4, 20]], [[8, 24], [4, 8, 20, 24]]], ids=["single", "both"])
def test_damaged_extension_loses_nothing(make_volume: Callable[..., RunVolume], rounds: list[list[int]]) -> None:
    volume = make_volume(cache_size="48MiB")
    volume.make_backing(96 * MIB)
    check = ["check", volume.cache, "--state-dir", volume.state_dir]
    oracle = volume.oracle()
    start(volume)
    kill_while_extending(volume)
    assert volume.forebay.json(*check)["ok"], "check finds fault with a killed cache"

    for blocks in rounds:
        start(volume)
        oracle.verify(f"before blocks {blocks} are damaged")
        kill_while_extending(volume)
        with volume.cache.open("r+b") as cache:
            for block in blocks:
                flip(cache, block * BLOCK + 99)
        result = volume.forebay(*check, "--json", ok=False)
        assert result.code == 1 and not result.json()["ok"], f"blocks {blocks} are damaged: {result.describe()}"
        is_named(blocks, result.json()["findings"])
    volume.start()
    oracle.verify("after the last damage")
    volume.kill()
    assert volume.forebay.json(*check)["ok"], "the start has not repaired what was damaged"
    volume.start()
    oracle.verify("after the last kill")
    volume.stop()

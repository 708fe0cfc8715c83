"""The engine in virtual time beside the real one: the same trace to a real volume on the emulated disk and to
`forebay what-if`. Hits agree within half a point; on a longer trace, with LONG=1, mean latencies agree within 15 %,
which says something on an idle machine only. Settings are compared side by side; what makes no sense is refused.

`python -m harness.what_if TRACE CACHE_SIZE` compares a trace of your own."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.command import Forebay
from harness.daemon import RunVolume
from harness.devices import Devices
from harness.what_if import Comparison, compare, fast_folder, make_trace


@pytest.fixture
def compared(make_volume: Callable[..., RunVolume], devices: Devices, folder: Path) -> Callable[[int, str], Comparison]:
    """Compares a trace of so many requests with this size of the cache."""

    def compare_trace(requests: int, cache_size: str) -> Comparison:
        at = fast_folder(folder)
        devices.at_exit(lambda: shutil.rmtree(at))
        return compare(make_volume(cache_size=cache_size, at=at), make_trace(folder / "load.bin", requests))

    return compare_trace


def agree_in_hits(found: Comparison) -> None:
    print(found.text)
    assert 5 < found.real_hit_pct < 95, f"there is nothing to compare: {found.text}"
    assert abs(found.real_hit_pct - found.modelled_hit_pct) <= 0.5, (
        f"hits differ by more than half a point: {found.text}"
    )


def test_model_has_the_hits_of_the_engine(compared: Callable[[int, str], Comparison]) -> None:
    agree_in_hits(compared(1500, "16MiB"))


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.limit(600)
def test_longer_trace_agrees_too(compared: Callable[[int, str], Comparison]) -> None:
    found = compared(12000, "48MiB")
    agree_in_hits(found)
    if os.environ.get("LONG"):
        assert abs(found.mean_ratio - 1) <= 0.15, f"means differ by more than 15 %: {found.text}"


def test_settings_side_by_side(forebay: Forebay, folder: Path) -> None:
    trace = ["what-if", "--trace", make_trace(folder / "load.bin", 1500)]
    policies = ["--cache", "60%", "--cache", "16MiB", "--set", "reclaim_policy=lru,fifo"]
    forebay.env["COLUMNS"] = "80"
    table = forebay(*trace, *policies).stdout
    assert table.count("reclaim_policy=") == 4, table
    assert max(map(len, table.splitlines())) <= 80, table
    variants = forebay.json(*trace, *policies)["variants"]
    assert len(variants) == 4, variants
    again = [forebay(*trace, "--cache", "16MiB", "--asap", "--json").stdout for _ in range(2)]
    assert again[0] == again[1], "two tries of the same differ"


def test_what_makes_no_sense_is_refused(forebay: Forebay, folder: Path) -> None:
    load = make_trace(folder / "load.bin", 100)
    empty, cut, none = folder / "empty.bin", folder / "cut.bin", folder / "none.bin"
    empty.touch()
    cut.write_bytes(load.read_bytes()[:100])
    any_code = (1, 2)
    cache = ["--cache", "16MiB"]
    wrong = ["what-if", "--trace", load, *cache, "--set", "reclaim_polcy=lru"]
    forebay.refused("setting.unknown", *wrong, code=any_code, mentions=["reclaim_polcy", "reclaim_policy"])
    forebay.refused("what-if.model", "what-if", "--trace", load, "--cache", "4KiB", code=any_code, mentions=["4096"])
    forebay.refused("trace.empty", "what-if", "--trace", empty, *cache, code=any_code, mentions=[empty])
    forebay.refused(
        "trace.unreadable", "what-if", "--trace", cut, *cache, code=any_code, mentions=[cut, "4 bytes", "record 4"]
    )
    forebay.refused(
        "trace.unreadable", "what-if", "--trace", load, "--from", "forebay", *cache, code=any_code, mentions=[load]
    )
    wrong = ["what-if", "--trace", load, "--volume-size", "4KiB", *cache]
    forebay.refused("what-if.model", *wrong, code=any_code, mentions=["4096", "--volume-size"])
    forebay.refused("cli.system", "what-if", "--trace", none, *cache, code=any_code, mentions=[none])

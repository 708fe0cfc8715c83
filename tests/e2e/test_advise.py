"""Would a larger cache help? A load that twice the cache would hold shows it, on the screen, as JSON, and for the
pool. There is no advice about a volume that was not read; requests that make no sense are refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from harness.api import ApiError
from harness.clients import fio_speaks_nbd, need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.what_if import fast_folder

POOL = '\n[pool.fast]\ndevices = [{{ path = "{flash}/flash.img", size = "64MiB" }}]\n'
VOLUME = '\n[volume.{name}]\npool = "fast"\nbacking = "file:{folder}/{name}.img"\nexports = ["{uri}"]\n'


@pytest.fixture
def served(daemon: Daemon, devices: Devices, folder: Path) -> Daemon:
    """Volumes `db` and `idle` in a pool of 64 MiB, in memory: the log has room for what is to be filled."""
    flash = fast_folder(folder)
    devices.at_exit(lambda: shutil.rmtree(flash))
    text = POOL.format(flash=flash)
    for name in ("db", "idle"):
        sparse(folder / f"{name}.img", 256 * MIB)
        text += VOLUME.format(folder=folder, name=name, uri=daemon.nbd(name))
    daemon.configure(text)
    daemon.start()
    return daemon


def hits(advice: Any) -> dict[float, float]:
    return {size["times"]: size["hit_pct"] for size in advice["sizes"]}


def within(what: str, value: float, low: float, high: float) -> None:
    assert low <= value <= high, f"{what}: {value}, not {low} to {high}"


@pytest.mark.heavy
def test_twice_the_cache_would_help(served: Daemon) -> None:
    need("fio")
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")
    # Twice the cache holds what is read; today's size is far from that, where a little more or less of it decides over
    # everything. fio reads the same two thirds of the range, in the same order, nearly six times.
    how = ["--ioengine=nbd", f"--uri={served.nbd('db')}", "--iodepth=4", "--rw=randread", "--bs=16k", "--size=160M"]
    run(["fio", "--name=load", *how, "--norandommap", "--io_size=600M"])

    volume = served.json("advise", "db")
    pool = served.json("advise", "--pool", "fast", "--hours", "0")
    counters = served.api.get("/v1/volumes/db/stats")
    of = hits(volume)
    assert list(of) == [0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8], of
    blocks = counters["read_hit_blocks"] + counters["read_miss_blocks"]
    measured = 100 * counters["read_hit_blocks"] / blocks
    # The model fills every miss. Where the machine was too busy the engine left some out, each of which is a hit less
    # or room for another block.
    left_out = 100 * counters["fill_no_room_blocks"] / blocks
    within("modelled and measured", of[1] - measured, -4 - left_out, 4 + left_out)
    within("half", of[0.5], of[1] * 0.4, of[1] * 0.7)
    within("twice", of[2], 80, 86)
    assert of[8] - of[2] < 1, "twice is enough"
    assert volume["read_bytes"] == 600 * MIB == pool["read_bytes"], (volume, pool)
    assert hits(pool) == of and pool["volume"] == "", "no other volume of the pool is read"
    bounds = {size["times"]: size["is_lower_bound"] for size in volume["sizes"]}
    assert not bounds[1] and bounds[8], bounds

    words = served("advise", "db").stdout
    assert f"{of[1]:.1f}" in words and f"{of[2]:.1f} %+" in words, words
    assert all(len(line) <= 80 for line in words.splitlines()), words
    served.stop()


def test_no_advice_about_what_is_not_read(served: Daemon) -> None:
    words = served("advise", "idle").stdout
    assert "idle" in words and "%" not in words, f"an advice about nothing: {words}"
    assert served.json("advise", "idle")["read_bytes"] == 0
    served.stop()


def test_requests_that_make_no_sense(served: Daemon) -> None:
    served.refused("volume.unknown", "advise", "dbb", code=(1, 2), mentions=["dbb"])
    served.refused("pool.unknown", "advise", "--pool", "slow", code=(1, 2), mentions=["slow"])
    served.refused("cli.argument", "advise", "db", "--hours", "24", code=(1, 2), mentions=["--hours", "24"])
    served.refused("cli.usage", "advise", code=2, mentions=["VOLUME"])
    # What is no number is no request; what is too large makes no sense.
    for hours, status in (("x", 400), ("-1", 400), ("99999999999999999999", 400), ("24", 422)):
        with pytest.raises(ApiError) as refused:
            served.api.get(f"/v1/volumes/db/advice?hours={hours}")
        assert refused.value.status == status, f"hours={hours}: {refused.value}"
    served.stop()

"""What wears the flash is counted by cause. A budget holds fills back, and clients not. Disks are asked by smartctl,
which does not keep the daemon waiting where it hangs."""

import os
import re
from pathlib import Path

import pytest
from harness.clients import fio_speaks_nbd, need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, sparse

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
endurance_rating = "600TB"

[volume.db]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["{uri}"]
"""
LOADED = 48 * MIB


@pytest.fixture
def served(daemon: Daemon, folder: Path) -> Daemon:
    """Beside a smartctl that hangs for as long as its folder is there."""
    need("fio")
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")
    smartctl = folder / "bin/smartctl"
    smartctl.parent.mkdir()
    smartctl.write_text('#!/bin/sh\nwhile [ -e "$0" ]; do sleep 1; done\n')
    smartctl.chmod(0o755)
    daemon.forebay.env["PATH"] = f"{smartctl.parent}:{os.environ['PATH']}"
    sparse(folder / "disk.img", 256 * MIB)
    daemon.configure(CONFIG.format(folder=folder, uri=daemon.nbd("db")))
    daemon.start()
    return daemon


def load(daemon: Daemon, how: str) -> None:
    """48 MiB at random places."""
    where = ["--ioengine=nbd", f"--uri={daemon.nbd('db')}", "--iodepth=8", f"--rw={how}", "--bs=16k", "--size=192M"]
    run(["fio", "--name=load", *where, "--norandommap", "--randrepeat=0", f"--io_size={LOADED}"])


def stats(daemon: Daemon) -> dict[str, int]:
    return daemon.api.get("/v1/volumes/db/stats")


def test_causes_of_wear_are_counted(served: Daemon) -> None:
    load(served, "randread")
    load(served, "randwrite")
    flash = served.pool("fast")["devices"][0]["flash"]
    assert flash["written_by_cause"]["client writes"] > 0 and flash["written_by_cause"]["fills"] > 0, flash
    assert flash["life_days"] is None, "it says how long after seconds"
    found = stats(served)
    pattern = r"cache_written_\w+_bytes"
    causes = [name for name in found if re.fullmatch(pattern, name)]
    assert len(causes) == 10, causes
    total = sum(found[name] for name in causes)
    assert total == found["cache_written_bytes"], (total, found["cache_written_bytes"])
    series = re.compile(r'forebay_cache_device_written_bytes_total\{[^}]*cause="([^"]*)"[^}]*\}')
    by_cause = {name: value for name, value in served.api.metrics().items() if series.fullmatch(name)}
    assert len(by_cause) == 10 and sum(by_cause.values()) >= total, by_cause
    screen = served("pool", "show", "fast").stdout
    assert "client writes" in screen and "fills" in screen, screen
    served.stop()


def test_amounts_that_make_no_sense(served: Daemon) -> None:
    before = served.config_path.read_bytes()
    budget, rating = ["endurance_budget"], ["endurance_rating"]
    pool = ["set", "--pool", "fast"]
    served.refused("setting.value", *pool, "endurance_budget=0", code=(1, 2), mentions=budget)
    served.refused("setting.value", *pool, "endurance_budget=lots", code=(1, 2), mentions=budget)
    served.refused("setting.value", *pool, "endurance_rating=7y", code=(1, 2), mentions=rating)
    served.refused("setting.value", *pool, "endurance_budget=0.3DWPD/5y", code=(1, 2), mentions=budget)
    assert served.config_path.read_bytes() == before
    served.stop()


def test_budget_holds_fills_back(served: Daemon) -> None:
    served("set", "--pool", "fast", "endurance_budget=7y")
    assert served.pool("fast")["endurance"], "no budget is shown"
    served("set", "--pool", "fast", "endurance_budget=1MB")
    load(served, "randread")
    found = stats(served)
    assert found["filled_blocks"] <= 20, f"{found['filled_blocks']} blocks were filled with a budget of 1 MB a day"
    assert found["endurance_unfilled_blocks"] > 100, "nothing was left out"
    load(served, "randwrite")
    assert stats(served)["failed_requests"] == 0, "a client was refused"
    served("set", "--pool", "fast", "endurance_budget=off")
    load(served, "randread")
    assert stats(served)["filled_blocks"] - found["filled_blocks"] > 100, "without a budget nothing is filled"
    served.stop()

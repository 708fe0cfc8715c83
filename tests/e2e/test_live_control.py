"""An operator can change everything while a client writes and reads: modes, orders, policies, limits, rules, sizes
and devices; a second volume comes and goes. The client gets no error and no wrong data. A change that makes no sense
is refused and changes nothing; an accepted one is there after a restart."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, write_pattern
from harness.daemon import Daemon
from harness.devices import MIB, sparse

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "96MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{uri}"]
"""
# What `set` changed below, in the order in which it is set back.
KEYS = [
    "flush_period",
    "idle_delay",
    "dirty_low_pct",
    "dirty_high_pct",
    "max_destage_iops",
    "max_destage_bandwidth",
    "latency_target",
    "destage_depth_max",
    "destage_gap_kb",
    "skip_seq_thresh_kb",
    "min_share_pct",
    "max_share_pct",
    "priority",
]


@pytest.fixture
def served(daemon: Daemon, folder: Path) -> Daemon:
    """Volume `db` of 192 MiB in a pool of 96 MiB."""
    sparse(folder / "db.img", 192 * MIB)
    sparse(folder / "vm.img", 192 * MIB)
    daemon.configure(CONFIG.format(folder=folder, uri=daemon.nbd("db")))
    daemon.start()
    return daemon


@contextlib.contextmanager
def load(daemon: Daemon) -> Iterator[None]:
    """Meanwhile sectors of `db` are written at random, read and compared; afterwards all are compared."""
    oracle = daemon.oracle("db")
    writer = oracle.load()
    time.sleep(0.5)
    yield
    oracle.finish(writer)
    oracle.verify("after the changes")
    daemon("volume", "detach", "db")
    oracle.verify_file(daemon.folder / "db.img", "alone")
    daemon.stop()


def change_modes(daemon: Daemon) -> None:
    for mode in ("writethrough", "writearound", "writeonly", "passthrough", "writeback"):
        daemon("set", "db", f"mode={mode}")
        assert daemon.volume("db")["mode"] == mode
        time.sleep(0.2)
    daemon("set", "db", "mode=writethrough", "--drain")
    daemon("set", "db", "mode=writeback")


def change_policies(daemon: Daemon) -> None:
    for order in ("fifo", "lru", "ordered", "elevator"):
        daemon("set", "db", f"destage_order={order}")
        time.sleep(0.2)
    for policy in ("fifo", "lru", "s3fifo"):
        daemon("set", "--pool", "fast", f"reclaim_policy={policy}", "survivors_max_pct=50")
        time.sleep(0.2)
    for admission in ("second-access", "never", "always"):
        daemon("set", "db", f"admission={admission}")


def change_limits_and_rules(daemon: Daemon) -> None:
    daemon("set", "db", "flush_period=10s", "idle_delay=off", "dirty_low_pct=0", "dirty_high_pct=30")
    limits = ["max_destage_iops=2000", "max_destage_bandwidth=50MiB", "latency_target=5ms", "destage_depth_max=4"]
    daemon("set", "db", *limits)
    daemon("set", "db", "skip_seq_thresh_kb=256", "min_share_pct=10", "max_share_pct=90", "priority=high")
    daemon("rules", "add", "db", "bypass", "direction=write", "size=..4KiB", "name=small")
    daemon("rules", "add", "db", "pin", "lba=0..1MiB", "name=front")
    daemon("rules", "add", "db", "write-through", "exe=nobody-has-this-name", "name=none")
    time.sleep(0.2)
    for rule in ("small", "front", "none"):
        daemon("rules", "delete", "db", rule)
    for key in KEYS:
        daemon("set", "db", f"{key}=")


@pytest.mark.heavy
def test_settings_and_rules_change_under_load(served: Daemon) -> None:
    with load(served):
        change_modes(served)
        change_policies(served)
        change_limits_and_rules(served)
        served("set", "--pool", "fast", "reclaim_policy=", "survivors_max_pct=")
        settings = served.api.get("/v1/volumes/db/settings")
        assert {key for key in KEYS if settings[key]["value"] != settings[key]["default"]} == set(), settings


@pytest.mark.heavy
def test_second_volume_comes_and_goes(served: Daemon, folder: Path) -> None:
    need("qemu-io")
    vm = served.nbd("vm")
    with load(served):
        for how in ([], ["--keep"], []):
            backing = f"file:{folder}/vm.img"
            export = ["--export", vm, "--set", "idle_delay=off"]
            served("volume", "attach", "vm", "--pool", "fast", "--backing", backing, *export)
            write_pattern(vm, 7, "1M", "2M")
            has_pattern(vm, 7, "1M", "2M")
            served("volume", "detach", "vm", *how)
            if not how:
                has_pattern(folder / "vm.img", 7, "1M", "2M")


@pytest.mark.heavy
def test_pool_and_volume_change_their_size(served: Daemon, folder: Path) -> None:
    with load(served):
        capacity = served.pool("fast")["capacity_bytes"]
        served("pool", "grow", "fast", "--size", "128MiB")
        served("pool", "grow", "fast", "--device", f"{folder}/more.img:64MiB")
        assert served.pool("fast")["capacity_bytes"] > capacity + 80 * MIB
        served("pool", "shrink", "fast", "--device", folder / "more.img")
        served("pool", "shrink", "fast", "--size", "96MiB")
        assert served.pool("fast")["capacity_bytes"] == capacity
        os.truncate(folder / "db.img", 224 * MIB)
        served("volume", "resize", "db", "max")
        assert served.volume("db")["size_bytes"] == 224 * MIB
        served("volume", "resize", "db", "192MiB", "--force")  # a client is connected
        assert served.volume("db")["size_bytes"] == 192 * MIB
        served("flush", "db")
        os.truncate(folder / "db.img", 192 * MIB)


def test_refused_changes_change_nothing(served: Daemon, folder: Path) -> None:
    before = served.config_path.read_bytes()
    settings = served.api.get("/v1/volumes/db/settings")
    wrong = (1, 2)
    served.refused("pool.in-use", "pool", "remove", "fast", mentions=["fast", "db"])
    served.refused("volume.unknown", "volume", "detach", "vm", mentions=["vm"])
    served.refused("setting.unknown", "set", "db", "dirty_hihg_pct=3", code=wrong, mentions=["dirty_hihg_pct"])
    served.refused("setting.conflict", "set", "db", "dirty_low_pct=80", code=wrong, mentions=["dirty_low_pct"])
    served.refused("setting.value", "set", "db", "mode=writesideways", code=wrong, mentions=["mode"])
    served.refused("rule.matches-nothing", "rules", "add", "db", "bypass", "lba=5GiB..6GiB", code=wrong)
    served.refused("volume.size", "volume", "resize", "db", "3", code=wrong)
    attach = ["volume", "attach", "other", "--pool", "nowhere", "--backing", f"file:{folder}/vm.img"]
    served.refused("pool.unknown", *attach, code=wrong)
    assert served.config_path.read_bytes() == before, "a refused change reached the configuration file"
    assert served.api.get("/v1/volumes/db/settings") == settings
    assert served.api.get("/v1/volumes/db/rules")["rules"] == []
    assert list(served.volumes()) == ["db"]
    served.stop()


def test_changed_setting_survives_a_restart(served: Daemon) -> None:
    served("set", "db", "dirty_high_pct=55")
    served.stop()
    assert served.config()["volume"]["db"]["dirty_high_pct"] == 55
    served.start()
    assert served("get", "db", "dirty_high_pct").stdout.split() == ["55"]
    served.stop()

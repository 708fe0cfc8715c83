"""A mirrored cache: either of its two devices may die while it is used. No client gets an error, nothing is lost, a
restart goes on with the other one, the stale one alone is refused, and a new device gets what it must have while the
cache is used. Then the OTHER one dies, and every byte is still there.

A device is a file on a tmpfs of its own. It fails for writes when the tmpfs is full, and for everything when the file
is cut and the tmpfs leaves no room to write it again."""

import contextlib
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, Devices, cut_off, sparse
from harness.oracle_run import Oracle
from harness.waiting import eventually

CONFIG = """[pool.safe]
devices = [{{ path = "{one}", size = "64MiB" }}, {{ path = "{other}", size = "64MiB" }}]
mirror = true
cache_allocation = "sparse"

[volume.db]
pool = "safe"
backing = "file:{folder}/db.img"
exports = ["{nbd}"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


def device(daemon: Daemon, name: str) -> Path:
    return daemon.folder / name / "cache.img"


def configure(daemon: Daemon, one: str, other: str) -> None:
    devices = {"one": device(daemon, one), "other": device(daemon, other)}
    daemon.configure(CONFIG.format(**devices, folder=daemon.folder, nbd=daemon.nbd("db")))


@pytest.fixture
def mirrored(daemon: Daemon, devices: Devices, folder: Path) -> Daemon:
    """Pool `safe` on devices a and b; c and d are there too."""
    for name in "abcd":
        devices.tmpfs(name, "80M")
    sparse(folder / "db.img", 64 * MIB)
    configure(daemon, "a", "b")
    daemon.start()
    return daemon


def is_whole(daemon: Daemon) -> bool:
    return daemon.pool("safe")["mirror"] == "whole"


def degraded(daemon: Daemon, out: str, *, after_start: bool = False) -> None:
    """Waits for the alarm; the pool shows which device is out, and it is noted."""
    daemon.alarmed("cache.degraded", 60)
    pool = daemon.pool("safe")
    states = {entry["path"]: entry["state"] for entry in pool["devices"]}
    # A start shows only what it uses.
    assert pool["mirror"] == "degraded" and states.get(str(device(daemon, out)), "out") == "out", pool
    assert len(states) == 2 or after_start, pool
    notes = "".join(path.read_text() for path in (daemon.state_dir / "mirrors").glob("*.json"))
    assert notes.count('"out"') == 1, notes


def fails_for_writes(daemon: Daemon, oracle: Oracle) -> None:
    """Device b takes no more writes, after some: clients get no error."""
    cache = device(daemon, "b")
    load = oracle.load(seed=1)
    eventually(lambda: cache.stat().st_blocks * 512 > 6 * MIB, 60, "much is written")
    oracle.finish(load)
    assert cache.stat().st_blocks * 512 < 60 * MIB, "the log has been everywhere in the file already"
    with contextlib.suppress(OSError), (daemon.folder / "b/filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(64 << 10)):
            pass
    load = oracle.load(seed=2)
    degraded(daemon, "b")
    oracle.finish(load)


def test_impossible_changes_are_refused(mirrored: Daemon, folder: Path) -> None:
    three = [word for number in "123" for word in ("--device", f"{folder}/{number}:8MiB")]
    mirrored.refused("setting.conflict", "pool", "create", "no", "--mirror", *three, code=(1, 2), mentions=["3"])
    mirrored.refused("pool.mirrored", "pool", "grow", "safe", "--size", "max", code=(1, 2), mentions=["safe"])
    new = ["--device", f"{device(mirrored, 'd')}:64MiB"]
    mirrored.refused("pool.device-choice", "pool", "replace", "safe", *new, code=(1, 2), mentions=["safe", "2"])
    assert is_whole(mirrored)
    mirrored.stop()


@pytest.mark.heavy
def test_stale_device_alone_is_refused(mirrored: Daemon, folder: Path) -> None:
    """A device takes no more writes; after kill -9 the pool goes on with the other one, though both are found."""
    oracle = mirrored.oracle("db")
    fails_for_writes(mirrored, oracle)
    mirrored("stats", "db", "--format", "prometheus")
    mirrored.kill()
    mirrored.start()
    degraded(mirrored, "b", after_start=True)
    oracle.verify("after kill -9 with one device")
    mirrored.stop()

    one, stale, away = device(mirrored, "a"), device(mirrored, "b"), folder / "a/away.img"
    one.rename(away)
    mirrored.start()
    mirrored.logged("cache.member-stale", [stale])
    mirrored.alarmed("pool.failed")
    # The one that counts comes back: the pool waits for no command.
    away.rename(one)
    mirrored.quiet("pool.failed")
    oracle.verify("when the device that counts has come back")
    mirrored.stop()
    one.rename(away)
    rescue = ["--to", folder / "rescued", "--state-dir", mirrored.state_dir]
    mirrored.forebay.refused("cache.member-stale", "salvage", stale, *rescue, mentions=[stale])
    away.rename(one)
    mirrored.forebay.refused("cache.faults-found", "check", one, stale, mentions=[stale])
    mirrored.forebay("salvage", one, *rescue)


def is_replaced(daemon: Daemon, oracle: Oracle) -> None:
    """Device c gets what it must have in the place of b, while the cache is used."""
    load = oracle.load(seed=3)
    daemon("pool", "replace", "safe", "--device", f"{device(daemon, 'c')}:64MiB")
    oracle.finish(load)
    assert is_whole(daemon), daemon.pool("safe")
    daemon.quiet("cache.degraded")
    rebuilds = [job["state"] for job in daemon.api.get("/v1/jobs") if job["kind"] == "rebuild"]
    assert "completed" in rebuilds, daemon.api.get("/v1/jobs")
    assert str(device(daemon, "c")) in daemon.config_path.read_text()
    daemon("pool", "scrub", "safe")


@pytest.mark.heavy
def test_both_devices_die_one_after_the_other(mirrored: Daemon, folder: Path) -> None:
    """The first one is replaced in time. In the end the backing store alone has everything."""
    oracle = mirrored.oracle("db")
    fails_for_writes(mirrored, oracle)
    is_replaced(mirrored, oracle)

    load = oracle.load(seed=4)
    cut_off(mirrored.running, device(mirrored, "a"), "64k")
    degraded(mirrored, "a")
    oracle.finish(load)
    oracle.verify("after the other device had died")
    mirrored.kill()
    mirrored.start()
    oracle.verify("after kill -9 with the other device")
    mirrored.stop()

    # An empty device in the configuration: a rebuild that was interrupted begins again by itself.
    configure(mirrored, "d", "c")
    sparse(device(mirrored, "d"), 64 * MIB)
    mirrored.start()
    eventually(lambda: is_whole(mirrored), 60, "the rebuild ends")
    mirrored.quiet("cache.degraded")
    mirrored.stop()
    mirrored.forebay("check", device(mirrored, "c"), device(mirrored, "d"))

    mirrored.start()
    mirrored("volume", "detach", "db")
    oracle.verify_file(folder / "db.img", "after everything was written back")
    mirrored.stop()

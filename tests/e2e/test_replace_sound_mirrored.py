"""A device of a mirrored pool is replaced while clients write. The pool is mirrored all the time, and every
acknowledged write stays there: after kill -9, and when the device that is copied, or the other one, fails
meanwhile."""

import os
import shutil
import time
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.pools import devices_of, has_job, lies_on, no_cache
from harness.process import Process
from harness.waiting import eventually

POOL = """[pool.fast]
devices = [{{ path = "{folder}/o.img", size = "64MiB" }}, {{ path = "{folder}/p.img", size = "64MiB" }}]
mirror = "on"

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["{nbd}"]
idle_delay = "off"
"""


@pytest.fixture
def mirrored(daemon: Daemon, folder: Path) -> Daemon:
    """Pool `fast` on o.img and p.img."""
    sparse(folder / "vol.img", 48 * MIB)
    daemon.configure(POOL.format(folder=folder, nbd=daemon.nbd()))
    daemon.start()
    return daemon


def replace(daemon: Daemon, new: str, old: str | None = None) -> list[str]:
    """The words of `forebay pool replace`; NEW may have a size behind it."""
    leaves = ["--old", str(daemon.folder / old)] if old else []
    return ["pool", "replace", "fast", *leaves, "--device", f"{daemon.folder}/{new}"]


def begin(daemon: Daemon, new: str, old: str) -> Process:
    return daemon.forebay.start(*replace(daemon, new, old), name="replace")


def mirror(daemon: Daemon) -> str:
    return daemon.pool("fast")["mirror"]


def is_whole(daemon: Daemon, when: str) -> None:
    assert mirror(daemon) == "whole", f"{daemon.pool('fast')} {when}"


@pytest.mark.heavy
def test_both_devices_are_replaced_under_writes(mirrored: Daemon, folder: Path) -> None:
    oracle = mirrored.oracle()
    load = oracle.load(seed=7)
    choice = ["2", "--old PATH", folder / "o.img", folder / "p.img"]
    mirrored.refused("pool.device-choice", *replace(mirrored, "m.img:64MiB"), code=2, mentions=choice)
    mirrored.refused("device.too-small", *replace(mirrored, "m.img:60MiB", "o.img"), code=2, mentions=["64MiB"])
    command = begin(mirrored, "m.img:64MiB", "o.img")
    while command.is_running:
        is_whole(mirrored, "while a device is replaced")
    command.succeeds()
    mirrored(*replace(mirrored, "n.img:70MiB", "p.img"))
    is_whole(mirrored, "after both devices were replaced")
    lies_on(mirrored, "m.img", "n.img", when="after both devices were replaced")
    oracle.finish(load)
    for name in ("o.img", "p.img"):
        no_cache(mirrored.forebay, folder / name, "after it was replaced")
        (folder / name).unlink()
    oracle.verify("after both devices were replaced")
    mirrored.stop()


@pytest.mark.heavy
def test_killed_replacement_leaves_a_whole_mirror(mirrored: Daemon, folder: Path) -> None:
    oracle = mirrored.oracle()
    load = oracle.load(seed=8)
    command = begin(mirrored, "m.img:64MiB", "o.img")
    has_job(mirrored, command)
    time.sleep(0.05)  # at any moment
    mirrored.kill()
    command.wait()
    load.succeeds()
    mirrored.start()
    oracle.verify("after kill -9 while a device was replaced")
    is_whole(mirrored, "after kill -9")
    found = devices_of(mirrored)
    assert found in (["o.img", "p.img"], ["m.img", "p.img"]), found
    old, new = ("o.img", "m.img") if found[0] == "o.img" else ("m.img", "o.img")
    no_cache(mirrored.forebay, folder / new, "after kill -9")
    (folder / new).unlink(missing_ok=True)
    mirrored(*replace(mirrored, f"{new}:64MiB", old))
    lies_on(mirrored, new, "p.img", when="after the command was given again")
    mirrored.stop()


def fails_while_it_is_copied(daemon: Daemon) -> None:
    """o.img, which m.img is to replace, fails; then p.img is replaced by n.img, whatever came of the former."""
    oracle = daemon.oracle()
    load = oracle.load(seed=9)
    command = begin(daemon, "m.img:64MiB", "o.img")
    has_job(daemon, command)
    os.truncate(daemon.folder / "o.img", 1 * MIB)
    # It may have been copied before it failed.
    if command.wait() != 0:
        eventually(lambda: mirror(daemon) == "degraded", 30, "the mirror is degraded")
    daemon(*replace(daemon, "n.img:64MiB", "p.img"))
    oracle.finish(load)
    oracle.verify("on a copy of the device that is left")
    if mirror(daemon) == "degraded":
        daemon(*replace(daemon, "m.img:64MiB"))
    is_whole(daemon, "after a device had failed that was copied")


def other_device_fails(daemon: Daemon) -> None:
    """m.img is copied to q.img all the same when n.img fails."""
    oracle = daemon.oracle()
    load = oracle.load(seed=10)
    command = begin(daemon, "q.img:64MiB", "m.img")
    has_job(daemon, command)
    os.truncate(daemon.folder / "n.img", 1 * MIB)
    command.succeeds()
    eventually(lambda: mirror(daemon) == "degraded", 60, "the mirror is degraded")
    oracle.finish(load)
    oracle.verify("after the other device had failed")
    (daemon.folder / "n.img").unlink()
    daemon(*replace(daemon, "n.img:64MiB"))
    is_whole(daemon, "in the end")


@pytest.mark.heavy
def test_devices_that_fail_during_a_replacement(mirrored: Daemon, folder: Path) -> None:
    """The one that is copied; then the other one; and in the end an old device comes back in the place of a new one."""
    oracle = mirrored.oracle()
    oracle.write(1, seed=6)
    # As it was long before; the pool uses it meanwhile.
    shutil.copyfile(folder / "p.img", folder / "older.img")
    fails_while_it_is_copied(mirrored)
    other_device_fails(mirrored)
    mirrored.stop()

    (folder / "older.img").rename(folder / "n.img")
    mirrored.start()
    assert mirror(mirrored) == "degraded", mirrored.pool("fast")
    oracle.verify("with a device that was replaced before")
    mirrored.stop()

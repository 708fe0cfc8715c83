"""Disk and cache move to another host (a folder, a configuration and a state directory of its own), with dirty data.

Copied with their times, the volume is there at once. Copied without them, it is refused until the operator says what
is to become of the dirty data, and then nothing is missing. The old host forgets the pool. An export and an import
carry the settings, also with kill -9 in the middle of them (DELAYS=... for other moments: seconds after the command
was given, or `changed`: when the configuration has changed)."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.clients import need, write_pattern
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.oracle_run import Oracle
from harness.pools import closely
from harness.process import Process
from harness.waiting import eventually

DELAYS = os.environ.get("DELAYS", "0.05 0.2 changed").split()
CONFIG = """[pool.fast]
devices = [{{ path = "{at}/flash.img", size = "32MiB" }}, {{ path = "{at}/more.img", size = "16MiB" }}]
segment_size = "256KiB"

[volume.vol]
pool = "fast"
backing = "file:{at}/vol.img"
exports = ["{nbd}"]
idle_delay = "off"
"""
MORE = 'size = "40MiB"\n[[volume.vol.rule]]\naction = "bypass"\nexe = "rsync"\n'


def first_host(daemon: Daemon, folder: Path, more: str = MORE) -> Oracle:
    """A host with disk and cache in folder `first`, and dirty data."""
    (folder / "first").mkdir()
    sparse(folder / "first/vol.img", 48 * MIB)
    daemon.configure(CONFIG.format(at=folder / "first", nbd=daemon.nbd()) + more)
    daemon.start()
    oracle = daemon.oracle()
    oracle.write(1)
    assert daemon.pool("fast")["dirty_bytes"] > 0
    return oracle


# --- Copied.


@pytest.fixture
def left(daemon: Daemon, folder: Path) -> Oracle:
    """Disk and cache of a host that was stopped, in folder `first`."""
    oracle = first_host(daemon, folder, more="")
    daemon.stop()
    return oracle


def new_host(daemon: Daemon) -> None:
    """Opens the cache of folder `copied`."""
    at = daemon.folder / "copied"
    daemon.configure("")
    daemon.start()
    daemon("pool", "create", "fast", "--device", at / "flash.img", "--device", at / "more.img")


def attach(daemon: Daemon) -> list[str]:
    backing = f"file:{daemon.folder}/copied/vol.img"
    return ["volume", "attach", "vol", "--pool", "fast", "--export", daemon.nbd(), "--backing", backing]


def drained(daemon: Daemon, oracle: Oracle) -> None:
    """The disk has everything in the end."""
    daemon("volume", "detach", "vol")
    oracle.verify_file(daemon.folder / "copied/vol.img", "after the volume was detached")
    daemon.stop()


def event_kinds(daemon: Daemon) -> list[str]:
    lines = daemon("events", "--after", "oldest", "--json").stdout.splitlines()
    return [json.loads(line)["kind"] for line in lines]


@pytest.mark.heavy
def test_copied_with_their_times(left: Oracle, make_daemon: Callable[..., Daemon], folder: Path) -> None:
    run(["cp", "-rp", "--sparse=always", folder / "first", folder / "copied"])
    host = make_daemon("new")
    new_host(host)
    host(*attach(host))
    left.verify("copied with their times")
    kinds = event_kinds(host)
    assert "volume.attached" in kinds and "backing.changed" not in kinds, kinds
    host.restart()
    left.verify("after a start of the new host")
    drained(host, left)


@pytest.mark.heavy
def test_copied_without_their_times(left: Oracle, make_daemon: Callable[..., Daemon], folder: Path) -> None:
    """The volume is refused, and can be attached with a setting that says what is to become of the dirty data."""
    (folder / "copied").mkdir()
    for name in ("vol.img", "flash.img", "more.img"):
        shutil.copyfile(folder / "first" / name, folder / "copied" / name)
    was = (folder / "first/vol.img").stat().st_mtime_ns
    os.utime(folder / "copied/vol.img", ns=(was + 10**9, was + 10**9))
    host = make_daemon("new")
    new_host(host)
    host.refused("backing.changed", *attach(host), mentions=["keep-dirty"])
    host(*attach(host), "--set", "on_backing_change=keep-dirty")
    host("set", "vol", "on_backing_change=")
    left.verify("copied without their times")
    drained(host, left)


def test_old_host_forgets_the_pool(left: Oracle, daemon: Daemon, folder: Path) -> None:
    """It does not have the devices any more."""
    del left
    shutil.rmtree(folder / "first")
    daemon.start()
    assert daemon.pool("fast")["not_open"], "the pool is open without its devices"
    daemon("pool", "remove", "fast", "--force")
    assert daemon.api.get("/v1/pools") == []
    daemon.stop()


# --- Exported and imported.


def pools(daemon: Daemon) -> list[str]:
    """Pools of the configuration."""
    return list(daemon.config().get("pool", {}))


def settings(daemon: Daemon) -> dict[str, Any]:
    """What the configuration says of the volume, but for names of this host."""
    return {key: value for key, value in daemon.config()["volume"]["vol"].items() if key not in ("pool", "backing")}


def members(folder: Path, *names: str) -> list[str]:
    """The cache devices in a folder as options, in any order."""
    return [word for name in names or ("more.img", "flash.img") for word in ("--device", str(folder / name))]


def confirmed(daemon: Daemon, store: Path) -> list[str]:
    """Options that name what the settings on the cache name. DAEMON is the host that exported it."""
    return ["--backing", f"vol=file:{store}", "--export", f"vol={daemon.nbd()}"]


@pytest.fixture
def exported(daemon: Daemon, folder: Path) -> Oracle:
    """Disk and cache of pool `fast`, which was exported, in folder `second`."""
    oracle = first_host(daemon, folder)
    daemon("pool", "export", "fast")
    daemon.stop()
    (folder / "first").rename(folder / "second")
    return oracle


def served(daemon: Daemon) -> None:
    eventually(lambda: daemon.volume("vol")["state"] == "serving", 30, "the volume is served")


@pytest.mark.heavy
def test_export_is_refused_while_used(daemon: Daemon, folder: Path) -> None:
    """And for a pool that is not there. After it, the configuration and a start do not know the pool any more."""
    oracle = first_host(daemon, folder)
    load = oracle.load(seed=7)
    daemon.refused("volume.in-use", "pool", "export", "fast", mentions=["vol", "1 NBD", "--force"])
    daemon.refused("pool.unknown", "pool", "export", "fst", mentions=["fst"])
    oracle.finish(load)
    daemon.refused(
        "pool.device-in-use",
        "pool",
        "import",
        "--device",
        folder / "first/flash.img",
        mentions=[folder / "first/flash.img"],
    )
    daemon("pool", "export", "fast")
    assert pools(daemon) == []
    daemon.refused("pool.unknown", "pool", "show", "fast", mentions=["fast"])
    inspected = daemon.json("inspect", folder / "first/flash.img", folder / "first/more.img")
    assert inspected["exported"]["host"] == os.uname().nodename, inspected["exported"]
    daemon.restart()
    assert daemon.api.get("/v1/pools") == []
    daemon.stop()


def imports_are_refused(host: Daemon, at: Path, mine: Path) -> None:
    """Each with its reason; nothing is changed, nor by a dry run. The host has a pool `fast` on MINE."""
    before = host.config_path.read_text()
    words, both, quick = ["pool", "import"], members(at), ["--pool", "quick"]
    host.refused("cache.member-missing", *words, *members(at, "flash.img"), *quick, mentions=["2"])
    host.refused("cache.member-missing", *words, *members(at, "more.img"), *quick)
    host.refused("pool.exists", *words, *both, mentions=["fast", "--pool NAME"])
    host.refused("pool.device-in-use", *words, "--device", mine)
    host.refused("volume.not-in-pool", *words, *both, *quick, "--backing", "vl=/x", code=(1, 2), mentions=["vl", "vol"])
    same = ["--backing", f"vol=file:{at}/more.img"]
    host.refused("backing.not-the-one", *words, *both, *quick, *same, code=(1, 2), mentions=["vol"])
    host.refused("device.twice", *words, *both, *members(at, "flash.img"), *quick, code=(1, 2), mentions=["flash.img"])
    dry = host.json(*words, *both, *quick, "--dry-run")
    assert dry["dry_run"] and dry["pool"] == "quick", dry
    assert pools(host) == ["fast"]
    assert host.config_path.read_text() == before


@pytest.mark.heavy
def test_import_brings_data_and_settings(
    exported: Oracle, daemon: Daemon, make_daemon: Callable[..., Daemon], folder: Path
) -> None:
    """Members in any order, under another name; and kill -9 after it. What is imported here cannot be imported by
    others."""
    at, mine = folder / "second", folder / "mine.img"
    first = make_daemon("as-configured")
    first.configure(CONFIG.format(at=folder / "first", nbd=daemon.nbd()) + MORE)
    second = make_daemon("second")
    second.configure(f'[pool.fast]\ndevices = [{{ path = "{mine}", size = "32MiB" }}]\n')
    second.start()
    imports_are_refused(second, at, mine)
    imported = second.json("pool", "import", *members(at), "--pool", "quick", *confirmed(daemon, at / "vol.img"))
    (volume,) = imported["volumes"]
    assert volume["backing"] == f"file://{at}/vol.img" and volume["was"] == f"file://{folder}/first/vol.img", volume
    assert volume["name"] == "vol" and volume["attached"], volume
    exported.verify("after the import")
    assert settings(second) == settings(first)
    assert second.config()["pool"]["quick"]["segment_size"] == "256KiB"
    kinds = event_kinds(second)
    assert "pool.imported" in kinds and "backing.changed" not in kinds, kinds
    pool = second.pool("quick")
    assert pool["dirty_bytes"] and pool["cached_bytes"], "it is cold, or nothing is dirty"
    second.refused("pool.device-in-use", "pool", "import", *members(at), mentions=["quick"])
    second.kill()

    third = make_daemon("third")
    third.configure("")
    third.start()
    third.refused("cache.not-exported", "pool", "import", *members(at), mentions=["pool create NAME"])
    third.stop()
    second.start()
    exported.verify("after kill -9 of the host that imported it")
    second.stop()


def test_import_tells_what_no_settings_went_along_for(
    daemon: Daemon, make_daemon: Callable[..., Daemon], folder: Path
) -> None:
    """Dirty data of a volume that was not attached goes along, if the operator wants that; both hosts tell."""
    need("qemu-io")
    (folder / "first").mkdir()
    sparse(folder / "first/vol.img", 48 * MIB)
    daemon.configure(CONFIG.format(at=folder / "first", nbd=daemon.nbd()))
    daemon.start()
    write_pattern(daemon.nbd(), 0x5A, "0", "1M")
    daemon("volume", "detach", "vol", "--keep")
    daemon.refused("pool.dirty-data", "pool", "export", "fast", mentions=["vol", "--force"])
    daemon("pool", "export", "fast", "--force")
    [told] = daemon.events("pool.exported")
    assert "of vol, which had not been attached" in told["message"], told
    daemon.stop()
    host = make_daemon("third")
    host.configure("")
    host.start()
    imported = host.json("pool", "import", *members(folder / "first"))
    [absent] = imported["absent"]
    assert absent["name"] == "vol" and absent["dirty_bytes"] > 0, imported
    host.alarmed("volume.absent", volume="vol")
    host.stop()


def test_missing_store_is_waited_for(
    exported: Oracle, daemon: Daemon, make_daemon: Callable[..., Daemon], folder: Path
) -> None:
    """The volume is attached when its backing store comes, under the name that it had."""
    (folder / "second/vol.img").rename(folder / "kept")
    host = make_daemon("third")
    host.configure("")
    host.start()
    again = "forebay volume attach vol"
    words = [*members(folder / "second"), *confirmed(daemon, folder / "first/vol.img")]
    host.refused("pool.partly-imported", "pool", "import", *words, mentions=["1", again])
    assert host.volume("vol")["state"] != "serving"
    (folder / "first").mkdir()
    (folder / "kept").rename(folder / "first/vol.img")
    served(host)
    exported.verify("after the store came")
    host.stop()


def test_only_one_of_two_daemons_imports(
    exported: Oracle, daemon: Daemon, make_daemon: Callable[..., Daemon], folder: Path
) -> None:
    """They import at the same time: at most one has the pool, and the other one is as before. (Each may have a device
    when the other one asks for it: then both are refused.)"""
    both = [make_daemon("here"), make_daemon("other")]
    here, other = both
    for host in both:
        host.configure("")
        host.start()
    words = ["pool", "import", *members(folder / "second"), *confirmed(daemon, folder / "second/vol.img")]
    here(*words)
    for _ in range(3):
        here("pool", "export", "fast")
        commands = [host.forebay.start(*words, name=f"import-{host.name}") for host in both]
        codes = [command.wait() for command in commands]
        owners = [host for host in both if pools(host) == ["fast"]]
        assert len(owners) <= 1, [command.tail() for command in commands]
        assert codes == [0 if host in owners else 1 for host in both], [command.tail() for command in commands]
        if owners == [other]:
            other("pool", "export", "fast")
        if owners != [here]:
            here(*words)
    assert pools(other) == []
    other.stop()
    exported.verify("after imports at the same time")
    here.stop()


def killed_at(daemon: Daemon, moment: str, command: Process) -> None:
    """kill -9 so many seconds after a command was given, or when the pools of the configuration are others."""
    if moment == "changed":
        before = pools(daemon)
        closely(lambda: pools(daemon) != before or not command.is_running, 30, "the configuration changes")
    else:
        time.sleep(float(moment))
    daemon.kill()
    command.wait()


@pytest.mark.parametrize("moment", DELAYS)
def test_kill_loses_nothing(daemon: Daemon, folder: Path, moment: str) -> None:
    """In the middle of an export, and of an import after it: the pool is configured or exported."""
    oracle = first_host(daemon, folder)
    killed_at(daemon, moment, daemon.forebay.start("pool", "export", "fast", name="export"))
    was_exported = pools(daemon) == []
    daemon.start()
    if was_exported:
        words = ["pool", "import", *members(folder / "first"), *confirmed(daemon, folder / "first/vol.img")]
        killed_at(daemon, moment, daemon.forebay.start(*words, name="import"))
        daemon.start()
        if pools(daemon) == []:
            daemon(*words)
    served(daemon)
    oracle.verify(f"after kill -9 at {moment}")
    daemon.stop()

"""Ways out. A pool that cannot be opened is shown with what is known of its cache, and can be removed, but only by
force if something may be dirty. A reload does what the file says, or says what would do it. Commands of hints work as
they stand."""

import re
import shlex
from pathlib import Path

import pytest
from harness.command import Result
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.messages import Message
from harness.pools import Filled

FAST = '[pool.fast]\ndevices = [{{ path = "{folder}/fast.img", size = "64MiB" }}]\n'
OTHER = """[pool.other]
devices = [{{ path = "{folder}/other.img", size = "64MiB" }}]
[volume.w]
pool = "other"
backing = "file:{folder}/w.img"
exports = []
"""
DB = """[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{nbd}"]
idle_delay = "off"
"""
MISTYPED = '[pool.mistyped]\ndevices = [{{ path = "{folder}/none/x.img", size = "64MiB" }}]\n'


def configure(daemon: Daemon, *parts: str) -> None:
    daemon.configure("".join(part.format(folder=daemon.folder, nbd=daemon.nbd("db")) for part in parts))


@pytest.fixture
def served(daemon: Daemon, folder: Path) -> Daemon:
    """Pool `fast` with volume `db`, which has dirty data, and pool `other`."""
    for disk in ("db", "w"):
        sparse(folder / f"{disk}.img", 64 * MIB)
    configure(daemon, FAST, OTHER, DB)
    daemon.start()
    data(daemon).write()
    return daemon


def data(daemon: Daemon) -> Filled:
    return Filled(daemon, "db", blocks=64, block=65536)


def follow(daemon: Daemon, message: Message, command: str) -> Result:
    """Runs what a hint says."""
    found = re.search(rf"forebay {command}[^`,;)\n]*", message.text)
    assert found, message
    return daemon(*shlex.split(found[0])[1:])


def pools(daemon: Daemon) -> dict[str, dict]:
    return {pool["name"]: pool for pool in daemon.json("pool", "list")}


def test_lost_cache_is_removed_only_by_force(served: Daemon, folder: Path) -> None:
    """The cache is gone with dirty data. When it comes back, it is taken again with its data."""
    record = served.pool("fast")["recorded"]["path"]
    assert Path(record).parent == served.state_dir / "caches"
    assert f"{served.state_dir}/caches/" in served("pool", "show", "fast").stdout
    served.kill()
    (folder / "fast.img").rename(folder / "kept.img")
    served.start()
    listed = served("pool", "list").stdout
    assert "fast" in listed and max(map(len, listed.split("\n"))) <= 81, "the list is wide"
    assert "fast" in served("status").stdout
    found = pools(served)
    assert found["fast"]["not_open"] and found["fast"]["recorded"]["in_use"], found["fast"]
    assert not found["other"]["not_open"] and found["other"]["recorded"]["generation"] > 0, found["other"]
    assert found["fast"]["volumes"] == ["db"]

    remove = ["pool", "remove", "fast"]
    served.refused("pool.not-open", *remove, mentions=["fast", "db"])
    served.refused("pool.not-open", *remove, "--erase", "--force", mentions=["fast"])
    refused = served.refused("pool.not-open", *remove, mentions=["db", "forebay pool remove fast --force"])
    follow(served, refused, "pool remove fast --force")
    assert "fast" not in served.config()["pool"] and "db" not in served.config()["volume"]
    assert served.alarms() == []
    assert "fast" not in pools(served)

    (folder / "kept.img").rename(folder / "fast.img")
    served("pool", "create", "fast", "--device", f"{folder}/fast.img:64MiB")
    export = ["--export", served.nbd("db"), "--set", "idle_delay=off"]
    served("volume", "attach", "db", "--pool", "fast", "--backing", f"file:{folder}/db.img", *export)
    data(served).verify("after the cache came back")
    served.stop()


def test_reload_takes_out_what_left_the_file(served: Daemon) -> None:
    """A reload that cannot open a pool says so, and another one without it says what is taken out."""
    configure(served, FAST, OTHER, DB, MISTYPED)
    served.refused("cli.reload-incomplete", "reload", mentions=["mistyped"])
    configure(served, FAST, DB)
    said = served("reload")
    for name in ("w", "other", "mistyped"):
        assert re.search(rf"\b{name}\b", said.stdout + said.stderr), said.describe()
    assert set(pools(served)) == {"fast"} and set(served.volumes()) == {"db"}
    assert served.alarms() == []
    served.stop()


def test_pool_that_never_was_is_removed(served: Daemon) -> None:
    """Without force."""
    configure(served, FAST, DB, MISTYPED)
    served.refused("cli.reload-incomplete", "reload", mentions=["mistyped"])
    served("pool", "remove", "mistyped")
    assert "mistyped" not in served.config()["pool"]
    served.stop()


def setting(daemon: Daemon, key: str) -> object:
    """The value of a setting that is in effect for volume `db`."""
    return daemon.json("get", "db")[key]["value"]


def test_reload_says_what_cannot_be_changed(served: Daemon) -> None:
    """A setting that is used at the next attach is taken. One that cannot be changed is named each time; the way
    around works."""
    wanted = [FAST, DB, 'on_backing_change = "keep-dirty"\nemulate = "hdd-7200"\n']
    for _ in range(2):
        configure(served, *wanted)
        served.refused("cli.reload-incomplete", "reload", mentions=["volume.db.emulate"])
        assert setting(served, "on_backing_change") == "keep-dirty"
        assert setting(served, "emulate") == "none"
    configure(served, FAST)
    served("reload")
    configure(served, *wanted)
    served("reload")
    assert setting(served, "emulate") == "hdd-7200"
    data(served).verify("after reloads")
    served.stop()

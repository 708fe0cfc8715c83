"""Each way in warns of what `forebay config check` warns of: attach, the API, reload, `run`. The volume shows it."""

from collections.abc import Callable
from pathlib import Path

from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, sparse
from harness.waiting import eventually

OPEN = "config.insecure"
LOSSY = "config.data-loss"
POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'
VOLUME = '[volume.{name}]\npool = "fast"\nbacking = "file:{folder}/{name}.img"\nexports = ["{export}"]\n'


def ids(daemon: Daemon, volume: str) -> list[str]:
    return [warning["id"] for warning in daemon.volume(volume)["warnings"]]


def test_attach_warns_as_config_check_does(daemon: Daemon, folder: Path, free_port: Callable[[], int]) -> None:
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    disk = sparse(folder / "db.img", 64 * MIB)
    export = f"nbd://0.0.0.0:{free_port()}/db"
    attach = ["volume", "attach", "db", "--backing", f"file:{disk}", "--export", export]
    attached = daemon(*attach, "--set", "on_backing_change=discard-dirty")
    assert "ready: nbd://" in attached.stdout
    for id in (OPEN, LOSSY):
        told = [message for message in attached.messages if message.id == id]
        assert [message.severity for message in told] == ["warning"], attached.messages
        assert told[0].hint, told
        daemon.logged(id, ["db"])
    assert ids(daemon, "db") == [OPEN, LOSSY]
    checked = daemon("config", "check", daemon.config_path, ok=False)
    assert all(id in checked.stdout + checked.stderr for id in (OPEN, LOSSY)), checked.describe()
    # What is not open is not warned of.
    sparse(folder / "home.img", 64 * MIB)
    quiet = daemon("volume", "attach", "home", "--backing", f"file:{folder}/home.img", "--export", daemon.nbd("home"))
    assert quiet.messages == []
    assert ids(daemon, "home") == []
    daemon.stop()


def test_reload_warns(daemon: Daemon, folder: Path, free_port: Callable[[], int]) -> None:
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    sparse(folder / "db.img", 64 * MIB)
    export = f"nbd://0.0.0.0:{free_port()}/db"
    daemon.configure((POOL + VOLUME).format(folder=folder, name="db", export=export))
    daemon.never_logged(OPEN)
    daemon("reload")
    daemon.logged(OPEN, ["db"])
    assert ids(daemon, "db") == [OPEN]
    daemon.stop()


def test_run_warns(volume: RunVolume, free_port: Callable[[], int]) -> None:
    volume.make_backing(64 * MIB)
    volume.uri = f"nbd://0.0.0.0:{free_port()}/vol"
    volume.start()
    eventually(lambda: volume.logged(OPEN, ["vol"]), 30, "it is told")
    volume.stop()

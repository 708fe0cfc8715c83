"""Completions in the shells themselves: bash and zsh on a terminal, where TAB is typed, and fish by its own
question. Each completes a command, a volume that the daemon knows, a setting and its value."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from harness.clients import need
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.shells import completed, completed_by_fish

POOL = '\n[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'
VOLUME = '\n[volume.{name}]\npool = "fast"\nbacking = "file:{folder}/{name}.img"\nexports = []\n'
# What is typed, and the line after TAB. Behind `=` no blank comes: a value follows.
LINES = {
    "forebay vol": "forebay volume ",
    "forebay volume show da": "forebay volume show database ",
    "forebay get w": "forebay get web ",
    "forebay pool show f": "forebay pool show fast ",
    "forebay set database dirty_hi": "forebay set database dirty_high_pct=",
    "forebay set database mode=writet": "forebay set database mode=writethrough ",
    "forebay set --daemon met": "forebay set --daemon metrics_listen=",
    "forebay set --daemon log_level=w": "forebay set --daemon log_level=warn ",
}


@pytest.fixture
def env(daemon: Daemon, folder: Path) -> Mapping[str, str]:
    """Of a shell that finds `forebay`, which asks a daemon with volumes `database` and `web`."""
    (folder / "bin").mkdir()
    (folder / "bin/forebay").symlink_to(daemon.forebay.binary)
    text = POOL.format(folder=folder)
    for name in ("database", "web"):
        sparse(folder / f"{name}.img", MIB)
        text += VOLUME.format(folder=folder, name=name)
    daemon.configure(text)
    daemon.start()
    return {**daemon.forebay.env, "PATH": f"{folder}/bin:{daemon.forebay.env['PATH']}"}


def script(daemon: Daemon, shell: str) -> Path:
    path = daemon.folder / f"completions.{shell}"
    path.write_text(daemon("completions", shell).stdout)
    return path


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_completes(daemon: Daemon, env: Mapping[str, str], shell: str) -> None:
    need(shell)
    found = completed(shell, script(daemon, shell), list(LINES), env)
    assert found == list(LINES.values())
    daemon.stop()


def test_fish_completes(daemon: Daemon, env: Mapping[str, str]) -> None:
    need("fish")
    found = completed_by_fish(script(daemon, "fish"), list(LINES), env)
    assert found == [line.rstrip() for line in LINES.values()]
    daemon.stop()

"""Refusals of places for FUSE files, while the volume `a` is served as the file real/m/a."""

import time

from . import messages
from .daemon import Daemon
from .mounts import read_directly


def wrong(id: str, daemon: Daemon, text: str, *mentions: object) -> None:
    """The check of the configuration refuses it."""
    daemon.configure(text)
    daemon.refused(id, "config", "check", daemon.config_path, mentions=mentions)
    found = daemon.json("config", "check", daemon.config_path, ok=False)
    assert found["errors"] >= 1, found


def is_well(daemon: Daemon) -> None:
    """The file, the pool and the daemon answer."""
    read_directly(daemon.folder / "real/m/a")
    assert daemon.volume("a")["state"] == "serving"
    assert [pool["not_answering"] for pool in daemon.api.get("/v1/overview")["pools"]] == [False, False]


def no(id: str, daemon: Daemon, command: list[object], *mentions: object) -> None:
    """The command is refused, and what is served goes on."""
    daemon.refused(id, *command, code=(1, 2, 3), mentions=mentions, seconds=60)
    is_well(daemon)


def refused_in_the_end(id: str, daemon: Daemon, command: list[object], *mentions: object) -> None:
    """The command is refused after a while; meanwhile all that is served is answered."""
    asking = daemon.forebay.start(*command, name="asking")
    while asking.is_running:
        is_well(daemon)
        time.sleep(0.2)
    code = asking.wait()
    assert code in (1, 2, 3), f"ended with {code}: {asking.tail()}"
    messages.check(id, messages.parse(asking.stderr()), mentions, "an attach beside a stopped daemon")
    is_well(daemon)

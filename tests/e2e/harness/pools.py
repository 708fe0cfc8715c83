"""Pools whose cache devices change: what they lie on, the jobs that change them, and devices that stop answering."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .command import Forebay
from .daemon import Daemon
from .hanging import HangingFiles
from .nbd import FLUSH, READ, WRITE, Client
from .process import Process
from .waiting import SLOWNESS, eventually


def configured_devices(daemon: Daemon, pool: str = "fast") -> list[str]:
    """File names of the cache devices that the configuration names."""
    entries = daemon.config()["pool"][pool]["devices"]
    return [Path(entry if isinstance(entry, str) else entry["path"]).name for entry in entries]


def devices_of(daemon: Daemon, pool: str = "fast") -> list[str]:
    """File names of the cache devices of a pool, on which the daemon and the configuration must agree."""
    shown = [Path(device["path"]).name for device in daemon.pool(pool)["devices"]]
    configured = configured_devices(daemon, pool)
    assert shown == configured, f"the pool has {shown}, the configuration names {configured}"
    return shown


def lies_on(daemon: Daemon, *names: str, pool: str = "fast", when: str = "") -> None:
    found = devices_of(daemon, pool)
    assert found == list(names), f"the pool lies on {found}, not on {list(names)}, {when}"


def empty_folder(folder: Path) -> Path:
    """The state directory of a host that has no records."""
    made = folder / "no-records"
    made.mkdir(exist_ok=True)
    return made


def no_cache(forebay: Forebay, device: Path, when: str = "") -> None:
    """`forebay check` does not take a device for a cache any more."""
    result = forebay("check", device, "--state-dir", empty_folder(forebay.folder), ok=False)
    assert result.code != 0, f"{device} is still a cache {when}: {result.describe()}"


def note_replaced(daemon: Daemon, old: Path, new: Path, pool: str = "fast") -> None:
    """The state directory says from now on that OLD was replaced by NEW, and that OLD is not erased yet."""
    (record,) = (daemon.state_dir / "caches").glob("*.json")
    pair = {"cache_uuid": record.stem.replace("-", ""), "old": str(old), "new": str(new), "took_over": True}
    replaced_list(daemon, pool).parent.mkdir(exist_ok=True)
    replaced_list(daemon, pool).write_text(json.dumps({"version": 1, "pairs": [pair]}))


def replaced_list(daemon: Daemon, pool: str = "fast") -> Path:
    """Where the daemon notes which devices of a pool are replaced and not yet erased."""
    return daemon.state_dir / "replaced" / f"{pool}.json"


def job(daemon: Daemon, id: str) -> Any:
    return daemon.api.get(f"/v1/jobs/{id}")


def job_state(daemon: Daemon, id: str) -> str:
    return job(daemon, id)["state"]


def begin_job(daemon: Daemon, *command: object) -> str:
    """Gives a command with --background; the id of its job."""
    return daemon.json(*command, "--background")["id"]


def job_ends(daemon: Daemon, id: str, *states: str, seconds: float = 60) -> str:
    """Waits until a job has ended, in one of these states."""
    ended = eventually(lambda: (found := job(daemon, id))["finished"] and found, seconds, f"the end of job {id}")
    assert ended["state"] in states, ended
    return ended["state"]


def closely(condition: Callable[[], object], seconds: float, what: str) -> None:
    """As `eventually`, but asks without a pause, for states that last for less than a second."""
    until = time.monotonic() + seconds * SLOWNESS
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.001)


def has_job(daemon: Daemon, command: Process, pool: str = "fast") -> bool:
    """Whether a job changes the pool now; waits until it does, or until the command that begins it has ended."""
    running = False

    def begun() -> bool:
        nonlocal running
        running = daemon.pool(pool)["job"] is not None
        return running or not command.is_running

    closely(begun, 30, f"a job of pool {pool}")
    return running


def hang(files: HangingFiles) -> None:
    """Pauses the server of a device, and waits for what it has answered before."""
    files.pause()
    # The daemon notes within this time what was answered. A test holds if it does not.
    time.sleep(0.3)


class Filled:
    """What a test writes through an NBD export, and reads again: each block its own byte."""

    def __init__(self, daemon: Daemon, export: str, *, blocks: int, block: int = 4096, step: int = 1) -> None:
        self.daemon = daemon
        self.export = export
        self.count = blocks
        self.block = block
        self.stride = block * step

    def _data(self, at: int) -> bytes:
        return bytes([at * 7 % 255 + 1]) * self.block

    def client(self) -> Client:
        return Client(str(self.daemon.socket(self.export)), self.export)

    def write(self) -> None:
        client = self.client()
        for at in range(self.count):
            error, _ = client.call(WRITE, at * self.stride, self.block, self._data(at))
            assert error == 0, f"writing block {at}: error {error}"
        error, _ = client.call(FLUSH)
        assert error == 0, f"FLUSH: error {error}"
        client.close()

    def right(self) -> int:
        """How many blocks do not read as something else: an error is no wrong data."""
        client = self.client()
        answers = [(at, client.call(READ, at * self.stride, self.block)) for at in range(self.count)]
        client.close()
        return self.count - sum(1 for at, (error, data) in answers if not error and data != self._data(at))

    def verify(self, when: str = "") -> None:
        client = self.client()
        for at in range(self.count):
            error, data = client.call(READ, at * self.stride, self.block)
            assert error == 0 and data == self._data(at), f"block {at}: error {error}, or wrong data, {when}"
        client.close()

"""The daemon under test: `forebay serve` with a configuration file, or `forebay run` with one volume."""

import contextlib
import json
import os
import signal
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import messages
from .api import Api
from .command import Forebay, Result
from .messages import Message
from .oracle_run import Oracle
from .process import Process
from .waiting import eventually

READY_SECONDS = 60


class Served:
    """What both ways to serve have in common: a process that is started, stopped, killed, and asked."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.process: Process | None = None
        self.log = folder / f"{name}.log"
        # In front of the command: a program that changes the environment first (unshare, setpriv, prlimit).
        self.wrapper: list[str] = []

    def _spawn(self, forebay: Forebay, args: Iterable[object], **options: Any) -> Process:
        assert self.process is None or not self.process.is_running, "it runs already"
        command = [*self.wrapper, forebay.binary, *map(str, args)]
        self.process = Process(command, self.log, env=forebay.env, cwd=self.folder, **options)
        return self.process

    @property
    def running(self) -> Process:
        assert self.process is not None, "it was never started"
        return self.process

    @property
    def pid(self) -> int:
        return self.running.pid

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = READY_SECONDS) -> None:
        """Waits for a condition while the daemon runs; its end is a failure at once."""

        def holds() -> bool:
            if condition():
                return True
            if not self.running.is_running:
                raise RuntimeError(f"the daemon ended with {self.running.popen.returncode}: {self.running.tail()}")
            return False

        eventually(holds, seconds, what)

    def wait_until_serving(self, seconds: float = READY_SECONDS) -> None:
        self.wait_for(lambda: has_line(self.log, "daemon.serving", "forebay: serving"), "the daemon serves", seconds)

    def stop(self, seconds: float = 60) -> None:
        """SIGTERM: it must end with exit code 0."""
        code = self.running.terminate(seconds)
        assert code == 0, f"exit code {code} after SIGTERM: {self.running.tail()}"

    def kill(self) -> None:
        """kill -9: nothing is written down."""
        assert self.running.is_running, f"the daemon has ended already: {self.running.tail()}"
        self.running.kill()

    def messages(self) -> list[Message]:
        """All messages of its log since it was started last."""
        return messages.parse(self.running.stderr())

    def logged(self, id: str, mentions: Iterable[object] = (), seconds: float = 20) -> Message:
        """The log has a message of this id that mentions the values, or gets it within a while."""
        values = list(mentions)
        return eventually(lambda: messages.check(id, self.messages(), values, "log"), seconds, f"{id} in the log")

    def never_logged(self, id: str) -> None:
        """No message of this id so far; `id` may be a group such as `block.`."""
        found = [message for message in self.messages() if message.id.startswith(id)]
        assert not found, messages.texts(found)

    def clean_up(self) -> None:
        if self.process is not None:
            self.process.kill()


class Daemon(Served):
    """`forebay serve`. Its admin socket, state directory and configuration file are in `folder`."""

    def __init__(self, folder: Path, name: str = "daemon") -> None:
        super().__init__(folder, name)
        suffix = "" if name == "daemon" else f"-{name}"
        self.admin = folder / f"admin{suffix}.sock"
        self.state_dir = folder / f"state{suffix}"
        self.config_path = folder / f"forebay{suffix}.toml"
        self.forebay = Forebay(folder, admin=self.admin)
        self.api = Api(self.admin)

    def clean_up(self) -> None:
        super().clean_up()
        # After an upgrade another process serves.
        lock = self.state_dir / "daemon.lock"
        pid = lock.read_text().strip() if lock.is_file() else ""
        words = Path(f"/proc/{pid}/cmdline")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if pid and str(self.config_path).encode() in words.read_bytes().split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)

    def configure(self, text: str, daemon: str = "") -> None:
        """Writes the configuration file: `text` behind a [daemon] section, to which the lines `daemon` are added."""
        head = f'[daemon]\nadmin_socket = "{self.admin}"\nstate_dir = "{self.state_dir}"\n{daemon}\n'
        self.config_path.write_text(head + text)

    def config(self) -> dict[str, Any]:
        """The configuration file as it is now."""
        return tomllib.loads(self.config_path.read_text())

    def start(self, *args: object, wait: bool = True, **options: Any) -> None:
        """Starts it; waits until it serves (all that can be served is)."""
        self._spawn(self.forebay, ["serve", "--config", self.config_path, *args], **options)
        if wait:
            self.wait_until_serving()

    def restart(self, *args: object) -> None:
        self.stop()
        self.start(*args)

    def __call__(self, *args: object, **options: Any) -> Result:
        """A command of the operator, which must succeed."""
        return self.forebay(*args, **options)

    def json(self, *args: object, **options: Any) -> Any:
        return self.forebay.json(*args, **options)

    def refused(self, id: str, *args: object, **options: Any) -> Message:
        """A command of the operator that must be refused; see `Forebay.refused`."""
        return self.forebay.refused(id, *args, **options)

    def volume(self, name: str) -> Any:
        return self.api.get(f"/v1/volumes/{name}")

    def volumes(self) -> dict[str, Any]:
        return {volume["name"]: volume for volume in self.api.get("/v1/volumes")}

    def pool(self, name: str) -> Any:
        return self.api.get(f"/v1/pools/{name}")

    def alarms(self) -> list[Any]:
        return self.api.get("/v1/alarms")["alarms"]

    def alarm(self, condition: str, *, volume: str | None = None, pool: str | None = None) -> Any:
        """The alarm of this condition (for this volume or pool), or `None`."""
        for alarm in self.alarms():
            wanted = alarm["condition"] == condition
            wanted = (
                wanted and (volume is None or alarm["volume"] == volume) and (pool is None or alarm["pool"] == pool)
            )
            if wanted:
                return alarm
        return None

    def alarmed(self, condition: str, seconds: float = 30, **of: Any) -> Any:
        """Waits for an alarm of this condition, and returns it."""
        return eventually(lambda: self.alarm(condition, **of), seconds, f"an alarm {condition}")

    def quiet(self, condition: str, seconds: float = 30, **of: Any) -> None:
        """Waits until there is no alarm of this condition."""
        eventually(lambda: not self.alarm(condition, **of), seconds, f"the end of alarm {condition}")

    def events(self, kind: str) -> list[Any]:
        """All events of this kind, or group of kinds, since the start."""
        lines = self("events", "--kind", kind, "--after", "oldest", "--json").stdout.splitlines()
        return [json.loads(line) for line in lines]

    def socket(self, export: str = "vol") -> Path:
        """Where `nbd(export)` listens."""
        return self.folder / f"{export}.sock"

    def nbd(self, export: str = "vol") -> str:
        """A URI for an export of that name on a unix socket of its own."""
        return f"nbd+unix:///{export}?socket={self.socket(export)}"

    def oracle(self, export: str = "vol") -> Oracle:
        """The writer that knows what every sector of the export must hold."""
        return Oracle(self.folder, self.socket(export), export)


class RunVolume(Served):
    """`forebay run`: one volume `vol` on `backing` and `cache`, over NBD on `socket`."""

    def __init__(self, folder: Path, name: str = "run", cache_size: str = "64MiB") -> None:
        super().__init__(folder, name)
        self.forebay = Forebay(folder)
        self.backing = folder / "backing.img"
        self.cache = folder / "cache.img"
        self.cache_size = cache_size
        self.state_dir = Path(self.forebay.env["STATE_DIRECTORY"])
        self.socket = folder / "nbd.sock"
        self.uri = f"nbd+unix:///vol?socket={self.socket}"

    def make_backing(self, size: int) -> Path:
        """An empty (sparse) backing store of this many bytes."""
        self.backing.touch()
        os.truncate(self.backing, size)
        return self.backing

    def args(self, *more: object) -> list[object]:
        """The words behind `forebay`."""
        cache = f"{self.cache}:{self.cache_size}"
        return ["run", "--backing", f"file:{self.backing}", "--cache", cache, "--export", self.uri, *more]

    def start(self, *more: object, wait: bool = True, **options: Any) -> None:
        self._spawn(self.forebay, self.args(*more), **options)
        if wait:
            # Its standard output has `ready:` earlier, when the admin API does not listen yet.
            self.wait_until_serving()

    def refused(self, id: str, *more: object, **options: Any) -> Message:
        """`forebay run` with these words added must end by itself with a message of this id."""
        return self.forebay.refused(id, *self.args(*more), **options)

    def oracle(self) -> Oracle:
        return Oracle(self.folder, self.socket, "vol")


def has_line(log: Path, id: str, text: str) -> bool:
    """Whether the log has a message of this id, as JSON or as text."""
    words = log.read_text(errors="replace")
    return f'"id":"{id}"' in words.replace('"id": "', '"id":"') or text in words


def seconds_since(began: float) -> float:
    return time.monotonic() - began

"""A root to install into: that of this machine under a layer that is thrown away, in a mount namespace of its own.
Nothing of the machine is changed, and nothing stays mounted or goes on running, however the test ends.

    system = make_root()                # fixture
    system.install()                    # what `make install` installs, its user and folders
    system.run("systemctl", "enable", "--now", "forebay")
    system.forebay("pool", "create", "fast", "--device", "/srv/flash.img:64MiB")
    assert "fast" in system.path("etc/forebay/forebay.toml").read_text()

A process (root_holder.py) holds the namespace; commands enter it by `nsenter`. Process numbers are those of this
machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from .command import BINARY, ROOT, Forebay, Result, run
from .process import Process
from .waiting import eventually

HOLDER = Path(__file__).with_name("root_holder.py")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
}


class RootForebay(Forebay):
    """`forebay` as it is installed in a root, for its own daemon. Other words than those of the root's PATH are not
    looked for."""

    def __init__(self, system: "SystemRoot", binary: Path = Path("/usr/bin/forebay")) -> None:
        super().__init__(system.folder, binary=binary)
        self.wrapper = system.inside()
        self.env = {**system.env, "FOREBAY_MESSAGES": "json"}


class SystemRoot:
    """A root of its own, in which commands run and files are read and written."""

    def __init__(self, folder: Path, *, devices: bool = False, network: bool = False) -> None:
        """`devices`: with all devices of this machine; `network`: with a network of its own, which has only a loopback
        device."""
        self.folder = folder
        self.at = folder / "root"
        self.env = {**os.environ, **ENVIRONMENT}
        for name in ("STATE_DIRECTORY", "FOREBAY_ADMIN", "FOREBAY_MESSAGES"):
            self.env.pop(name, None)
        self.network = network
        flags = [name for name, wanted in (("devices", devices), ("network", network)) if wanted]
        unshare = ["unshare", "--mount", "--propagation", "private", *(["--net"] if network else []), "--"]
        with (folder / "root.err").open("wb") as err:
            self.holder = subprocess.Popen(
                [*unshare, sys.executable, "-E", "-S", HOLDER, folder, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )
        assert self.holder.stdout
        said = self.holder.stdout.readline().decode().strip()
        if said.startswith("skip: "):
            pytest.skip(f"no layer can be put over this root: {said.removeprefix('skip: ')}")
        assert said == "ready", (folder / "root.err").read_text()
        self.started: list[Process] = []
        self.exits: list[Callable[[], object]] = []
        self.forebay = RootForebay(self)

    def path(self, name: str | Path) -> Path:
        """A file of the root, as this process gets at it. Absolute symlinks in it lead out of the root."""
        return Path(f"/proc/{self.holder.pid}/root") / self.at.relative_to("/") / str(name).lstrip("/")

    def outside(self) -> list[str]:
        """In front of a command that runs in the namespace, but with the root of this machine: `self.at` is the other
        one."""
        # `--root`, since the root of a guest is not that of its mount namespace.
        return [
            "nsenter",
            "--target",
            str(self.holder.pid),
            "--mount",
            "--root",
            *(["--net"] if self.network else []),
            "--",
        ]

    def inside(self) -> list[str]:
        """In front of a command that runs in the root."""
        return [*self.outside(), "chroot", str(self.at)]

    def as_user(self, user: str = "forebay") -> list[str]:
        """In front of a command that `run` runs as somebody else."""
        return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]

    def run(
        self,
        *words: object,
        ok: bool = True,
        seconds: float = 120,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
    ) -> Result:
        """Runs a command in the root, as root."""
        environment = {**self.env, **(env or {})}
        return run([*self.inside(), *map(str, words)], ok=ok, seconds=seconds, env=environment, stdin=stdin)

    def run_outside(
        self, *words: object, ok: bool = True, seconds: float = 120, env: Mapping[str, str] | None = None
    ) -> Result:
        """Runs a command in the namespace, with the root of this machine: for mounts below `self.at`."""
        return run([*self.outside(), *map(str, words)], ok=ok, seconds=seconds, env={**os.environ, **(env or {})})

    def start(self, *words: object, name: str, env: Mapping[str, str] | None = None) -> Process:
        """Starts a command in the root, in the background; it is killed at the end. Its log is NAME.err in the
        folder."""
        command = [*self.inside(), *map(str, words)]
        self.started.append(Process(command, self.folder / f"{name}.err", env={**self.env, **(env or {})}))
        return self.started[-1]

    def install(self, binary: Path = BINARY) -> None:
        """What `make install` installs, with prefix /usr; its user and folders."""
        self.run_outside(
            ROOT / "scripts/install", env={"FOREBAY": str(binary), "DESTDIR": str(self.at), "PREFIX": "/usr"}
        )
        self.run("systemd-sysusers", "forebay.conf")
        self.run("systemd-tmpfiles", "--create", "forebay.conf")
        self.run("chown", "forebay:", "/etc/forebay/forebay.toml")

    def main_pid(self) -> int:
        """The process that is the service now."""
        return int(self.path("run/manager/main.pid").read_text())

    def asked_of_systemctl(self) -> list[str]:
        """The words of each call of `systemctl` so far."""
        log = self.path("run/systemctl.log")
        return log.read_text().splitlines() if log.exists() else []

    def runs_program(self, pid: int, program: str = "usr/bin/forebay") -> bool:
        """Whether a process runs this very file of the root, not one that was replaced by it."""
        return Path(f"/proc/{pid}/exe").samefile(self.path(program))

    def at_exit(self, undo: Callable[[], object]) -> None:
        """Runs at the end, before what runs in the root is killed."""
        self.exits.append(undo)

    def clean_up(self) -> None:
        for undo in reversed(self.exits):
            try:
                undo()
            except Exception as error:
                print(f"at the end of a root: {error}")
        for process in self.started:
            process.kill()
        try:
            self.holder.communicate(timeout=60)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Ends the process that holds the root, and nothing that runs in it. A guest ends with all that is in it."""
        self.holder.kill()
        self.holder.wait()
        for pipe in (self.holder.stdin, self.holder.stdout):
            assert pipe
            pipe.close()


def wait_for_service(system: SystemRoot, seconds: float = 60) -> int:
    """Waits until the service manager has a service that is ready; the process number of the service."""
    ready = system.path("run/manager/ready")
    eventually(lambda: ready.exists() and ready.read_text().strip(), seconds, "the service is ready")
    return system.main_pid()


@pytest.fixture
def make_root(folder: Path, root: None) -> Iterator[Callable[..., SystemRoot]]:
    """Makes roots (`make_root()`, `make_root(devices=True)`), which are gone at the end."""
    del root
    made: list[SystemRoot] = []

    def make(**options: bool) -> SystemRoot:
        at = folder if not made else folder / f"root{len(made)}"
        at.mkdir(exist_ok=True)
        made.append(SystemRoot(at, **options))
        return made[-1]

    yield make
    for system in made:
        system.clean_up()


def programs_missing(system: SystemRoot, names: Iterable[str]) -> list[str]:
    """Which programs the root does not have."""
    return [name for name in names if system.run("sh", "-c", 'command -v "$1"', "sh", name, ok=False).code != 0]

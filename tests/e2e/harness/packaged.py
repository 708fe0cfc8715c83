"""A root with the Debian package in it: what dpkg says, the service, and loads on its volumes."""

import re
from collections.abc import Callable
from pathlib import Path

from .api import Api
from .clients import fio_command
from .command import Result
from .devices import MIB
from .process import Process
from .system_root import SystemRoot, wait_for_service
from .waiting import eventually


def dpkg_status(version: str) -> str:
    """What dpkg says of the package when this version is installed, whole."""
    return f"install ok installed {version}-0forebay1"


class Packaged:
    """A root with the package in it, and a service as the unit starts it."""

    def __init__(self, system: SystemRoot, deb: Callable[[str], Path]) -> None:
        self.system = system
        self.deb = deb
        # Of dpkg.
        self.options: list[str] = []

    def dpkg(self, *words: object, ok: bool = True) -> str:
        """What dpkg and the scripts of the package say."""
        done = self.try_dpkg(*words)
        assert (done.code == 0) == ok, done.describe()
        return done.stdout + done.stderr

    def try_dpkg(self, *words: object) -> Result:
        options = ["--force-unsafe-io", "--no-triggers", *self.options]
        return self.system.run("dpkg", *options, *words, ok=False, seconds=300)

    def install(self, version: str, *, ok: bool = True) -> str:
        return self.dpkg("--install", self.deb(version), ok=ok)

    def status(self) -> str:
        return self.system.run("dpkg-query", "-W", "-f", "${Status} ${Version}", "forebay").stdout

    def has(self, path: str) -> bool:
        return self.system.path(path).exists()

    def serve(self) -> None:
        """Starts the service, and makes pool `fast`."""
        self.system.run("install", "-d", "-o", "forebay", "-g", "forebay", "/srv/forebay")
        self.system.run("systemctl", "start", "forebay")
        wait_for_service(self.system)
        self.system.forebay("pool", "create", "fast", "--device", "/srv/forebay/flash.img:64MiB")

    def attach(self, name: str, export: str) -> None:
        """Attaches a volume, whose backing store is a new file."""
        self.system.run(*self.system.as_user(), "truncate", "-s", "128M", f"/srv/forebay/{name}.img")
        self.system.forebay(
            "volume", "attach", name, "--pool", "fast", "--backing", f"file:/srv/forebay/{name}.img", "--export", export
        )

    def runs_installed_program(self) -> bool:
        return self.system.runs_program(self.system.main_pid())

    def goes_on(self, before: int) -> bool:
        """The daemon is the process that it was."""
        return self.system.main_pid() == before and Path(f"/proc/{before}").exists()

    def written(self, volume: str) -> float:
        api = Api(self.system.path("run/forebay/admin.sock"))
        return api.metrics()[f'forebay_written_bytes_total{{pool="fast",volume="{volume}"}}']


class Load:
    """fio, which writes and verifies until it is stopped. It ends by itself only if it sees an error."""

    def __init__(self, packaged: Packaged, volume: str, *options: str, user: str = "root") -> None:
        self.packaged = packaged
        self.volume = volume
        self.report = Path(f"/run/manager/fio-{volume}.out")
        shape = ["--rw=randwrite", "--bs=4k", "--size=16M", "--time_based", "--runtime=3600", "--verify_backlog=64"]
        words = fio_command(volume, f"--output={self.report}", *shape, *options)
        self.process: Process = packaged.system.start(*packaged.system.as_user(user), *words, name=f"fio-{volume}")

    def writes(self) -> None:
        """Waits until it has written more."""
        before = self.packaged.written(self.volume)

        def grown() -> bool:
            assert self.process.is_running, self.describe()
            return self.packaged.written(self.volume) > before + MIB

        eventually(grown, 60, "fio writes")

    def describe(self) -> str:
        report = self.packaged.system.path(self.report)
        return f"{report.read_text() if report.exists() else ''}{self.process.tail()}"

    def finish(self) -> None:
        """Stops it: it has met no error, and has verified something."""
        assert self.process.is_running, f"fio has ended: {self.describe()}"
        self.process.terminate()
        text = self.describe()
        assert not re.search(r"^(verify|crc32c): |err= *[1-9]|error=", text, re.M), text
        assert re.search(r"rwts: total=[1-9]", text), text

"""A stand-in for the service manager: what a daemon writes to NOTIFY_SOCKET (sd_notify(3))."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from .command import Forebay
from .process import Process
from .waiting import eventually

# Prints each notice.
LISTEN = """
import socket, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening.bind(sys.argv[1])
while True:
    print(listening.recv(4096).decode(errors="replace").rstrip("\\n"), flush=True)
"""


class Notices:
    """Listens in a process of its own, so that a daemon never waits for the test."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "notify.sock"
        command = [sys.executable, "-I", "-S", "-c", LISTEN, str(self.socket)]
        self.process = Process(command, folder / "notices.err")
        eventually(self.socket.is_socket, 20, "the stand-in for the service manager listens")
        self.seen = 0

    def listen_to(self, forebay: Forebay) -> None:
        """What it starts from now on writes its notices here; earlier ones are forgotten."""
        forebay.env["NOTIFY_SOCKET"] = str(self.socket)
        self.seen = len(self.process.stdout())

    def text(self) -> str:
        return self.process.stdout()[self.seen :]

    def status(self) -> str:
        """The last STATUS."""
        found = re.findall(r"^STATUS=(.*)$", self.text(), re.M)
        return found[-1] if found else ""

    def has_status(self, mentions: Iterable[object], seconds: float = 20) -> None:
        """The last STATUS mentions all these values, or does within a while."""
        values = [str(value) for value in mentions]

        def has() -> bool:
            missing = [value for value in values if value not in self.status()]
            assert self.status() and not missing, f"the status does not mention {missing}: {self.status()}"
            return True

        eventually(has, seconds, f"a status with {values}")

    @property
    def is_ready(self) -> bool:
        return re.search(r"^READY=1$", self.text(), re.M) is not None

    def clean_up(self) -> None:
        self.process.kill()

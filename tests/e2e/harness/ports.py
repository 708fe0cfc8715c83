"""TCP ports that no other test has, nor any connection of this machine."""

import os
import random
import socket
import tempfile
import time
from pathlib import Path


class Ports:
    """Takes ports below those that the kernel gives to outgoing connections; files mark who has which."""

    def __init__(self) -> None:
        self.taken = Path(tempfile.gettempdir()) / f"forebay-e2e-ports.{os.getuid()}"
        self.marks: list[Path] = []

    def free(self) -> int:
        self.taken.mkdir(exist_ok=True)
        while True:
            port = random.randrange(20000, 32000)
            mark = self.taken / str(port)
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                if time.time() - mark.stat().st_mtime < 3600:
                    continue
                mark.touch()  # of a test that was killed
            self.marks.append(mark)
            with socket.socket() as tried:
                try:
                    tried.bind(("0.0.0.0", port))
                except OSError:
                    continue
            return port

    def clean_up(self) -> None:
        for mark in self.marks:
            mark.unlink(missing_ok=True)

"""Files that stop answering: another forebay serves them over FUSE, and is paused and resumed."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from .command import Forebay, run
from .devices import MIB, sparse
from .process import Process
from .waiting import eventually

# How long the kernel believes what it knows of a file's size.
SIZE_IS_KNOWN_SECONDS = 1.5


class HangingFiles:
    """One image as several files, `path(NAME)`. All hang while the server is paused."""

    def __init__(self, folder: Path, names: tuple[str, ...], size: int) -> None:
        self.folder = folder
        self.names = names
        image = sparse(folder / "hanging-disk.img", size)
        for name in names:
            self.path(name).parent.mkdir()
        # Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
        options = ["--io", "psync", "--backing", f"file:{image}", "--cache", f"{folder}/hanging-cache.img:64MiB"]
        exports = [word for name in names for word in ("--export", f"fuse:{self.path(name)}")]
        server = Forebay(folder)
        server.env["STATE_DIRECTORY"] = str(folder / "hanging-state")
        self.process: Process = server.start("run", *options, *exports, name="hanging")
        eventually(lambda: self.is_there() or not self.process.is_running, 60, "the files are there")
        assert self.is_there(), self.process.tail()

    def path(self, name: str) -> Path:
        return self.folder / f"hanging-{name}" / "disk.img"

    def is_there(self) -> bool:
        return all(self.path(name).exists() for name in self.names)

    def pause(self) -> None:
        """From now on nothing is answered."""
        self.process.pause()

    def forget_size(self) -> None:
        """Waits until the kernel asks again for the size of a file, which hangs then."""
        time.sleep(SIZE_IS_KNOWN_SECONDS)

    def resume(self) -> None:
        self.process.resume()

    def clean_up(self) -> None:
        """Whoever waits gets an answer, or an error of a file system that is gone."""
        if self.process.is_running:
            self.process.resume()
        self.process.kill()
        for name in self.names:
            run(["umount", "-l", str(self.path(name).parent)], ok=False)


@contextlib.contextmanager
def hanging_files(folder: Path, *names: str, size: int = 64 * MIB) -> Iterator[HangingFiles]:
    """At the end the files are given up first, so that the daemons that use them can be killed.

    So a fixture that uses this depends on `make_daemon`."""
    files = HangingFiles(folder, names, size)
    try:
        yield files
    finally:
        files.clean_up()

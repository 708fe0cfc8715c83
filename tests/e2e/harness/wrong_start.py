"""A daemon that is started with a wrong configuration, and what it does then."""

import fcntl
import hashlib
from pathlib import Path

from .daemon import Daemon
from .notices import Notices

EXPORT = "nbd+unix:///db?socket={w}/db.sock"
CONFIG = """
[pool.fast]
devices = [{{ path = "{w}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{w}/db.img"
exports = ["nbd+unix:///db?socket={w}/db.sock"]
"""


def is_locked(path: Path) -> bool:
    """Whether a process has the file locked."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Start:
    """A daemon that is configured wrongly: all its files are in the folder `w`, what it must not change."""

    def __init__(self, daemon: Daemon, notices: Notices, port: int) -> None:
        self.daemon = daemon
        self.w = daemon.folder
        self.notices = notices
        self.port = port
        self.token = self.w / "token"
        self.text = CONFIG.format(w=self.w)
        self.admin_tcp = f'admin_tcp = {{ listen = "127.0.0.1:{port}", token_file = "{self.token}" }}'

    def configure(self, text: str | None = None) -> None:
        self.daemon.configure(self.text if text is None else text, self.admin_tcp)

    def at(self, words: str, column: int = 1) -> str:
        """Where the words are in the file, as FILE:LINE:COLUMN; the last time that they are there."""
        lines = self.daemon.config_path.read_text().splitlines()
        line = max(number for number, line in enumerate(lines, 1) if words in line)
        return f"{self.daemon.config_path.name}:{line}:{column}"

    def tree(self) -> dict[str, tuple[int, int, str]]:
        """Each file with its size, its mode, and what is in it where the test gave it its contents. Not the state
        directory of a daemon that runs meanwhile, which writes its own records at any time."""
        in_use = [lock.parent for lock in self.w.rglob("daemon.lock") if is_locked(lock)]
        found = {}
        for path in sorted(self.w.rglob("*")):
            if any(path.is_relative_to(folder) for folder in in_use):
                continue
            status = path.stat()
            known = path.name in ("db.img", "other.img", "token") or path.suffix == ".toml"
            what = hashlib.sha256(path.read_bytes()).hexdigest() if known else ""
            if not path.is_socket():
                found[str(path)] = (0 if path.is_dir() else status.st_size, status.st_mode, what)
        return found

    def ends(self, id: str, mentions: list[object], status: list[object], file: Path | None = None) -> str:
        """It ends with 1 and mentions the values, the status for the service manager as well; nothing is changed."""
        before = self.tree()
        self.notices.listen_to(self.daemon.forebay)
        said = self.daemon.refused(id, "serve", "--config", file or self.daemon.config_path, mentions=mentions)
        assert self.tree() == before, "something was changed"
        self.notices.has_status(status)
        assert not self.notices.is_ready, self.notices.text()
        return said.text

    def cannot_be_used(self, id: str, text: str, *mentions: object) -> None:
        """With this configuration it ends, and says how to see all that is wrong."""
        self.configure(text)
        self.ends(id, list(mentions), ["forebay config check", self.daemon.config_path.name])

    def serves(self, id: str, mentions: list[object], alarm: str, status: object) -> None:
        """It serves, logs the values, has one alarm of this condition, and the service manager gets that."""
        self.notices.listen_to(self.daemon.forebay)
        self.daemon.start()
        self.daemon.logged(id, mentions)
        self.daemon.alarmed(alarm)
        self.notices.has_status(["1", status])
        assert len(self.daemon.alarms()) == 1, self.daemon.alarms()
        assert self.notices.is_ready
        self.daemon.stop()

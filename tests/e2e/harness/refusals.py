"""A volume with dirty data whose commands are refused, and what the messages say, executed as it stands."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from .clients import FLUSH, READ, WRITE, Client
from .command import run
from .daemon import Daemon
from .devices import MIB, Devices, sparse
from .messages import Message
from .waiting import eventually

# The first is on the backing store as well, the second only in the cache.
BASE, DIRTY = (0, b"\x41" * MIB), (8 * MIB, b"\x42" * MIB)
CONFIG = """[pool.fast]
devices = [{{ path = "{flash}", size = "64MiB" }}]
[volume.db]
pool = "fast"
backing = "file:{store}"
exports = ["{nbd}"]
idle_delay = "off"
"""
# A command, up to what ends it in a message; or the option that is to be added to the command that was refused.
COMMAND = re.compile(r"\b(?:forebay|rm|blockdev) [^`;,)\n]*")
ADDED = re.compile(r"(?:same command with|cut them off with|give them up:) (--[a-z-]+)")


@dataclass(frozen=True)
class Refusal:
    """A command that was refused, and why."""

    words: list[str]
    message: Message


class Scene:
    """Volume `db` of pool `fast`, with what BASE and DIRTY say."""

    def __init__(self, daemon: Daemon, devices: Devices, folder: Path) -> None:
        self.daemon = daemon
        self.devices = devices
        self.folder = folder
        self.flash = folder / "flash.img"
        self.other = folder / "other.img"
        self.small = folder / "small/small.img"
        self.store = sparse(folder / "db.img", 32 * MIB)

    def configure(self, *, named: bool = True) -> None:
        """The configuration names the pool and the volume, or nothing."""
        text = CONFIG.format(flash=self.flash, store=self.store, nbd=self.daemon.nbd("db"))
        self.daemon.configure(text if named else "")

    def start(self) -> None:
        self.configure()
        self.daemon.start()
        self.write(*BASE)
        self.daemon("flush", "db")
        self.write(*DIRTY)

    def restart_without(self, path: Path) -> Path:
        """The daemon starts again, and a file is not where it was, but beside it; where it is now."""
        self.daemon.stop()
        kept = path.rename(path.with_suffix(".kept"))
        self.daemon.start()
        return kept

    def client(self) -> Client:
        return Client(str(self.daemon.socket("db")), "db")

    def write(self, offset: int, data: bytes) -> None:
        with self.client() as client:
            assert client.call(WRITE, offset, len(data), data)[0] == 0
            assert client.call(FLUSH)[0] == 0

    def reads(self, offset: int, data: bytes) -> None:
        with self.client() as client:
            error, found = client.call(READ, offset, len(data))
        assert error == 0 and found == data, f"error {error}, or wrong data at {offset}"

    def refused(self, id: str, command: str) -> Refusal:
        """`forebay COMMAND` must be refused; `command` may name places of the scene."""
        places = {"flash": self.flash, "other": self.other, "small": self.small, "store": self.store}
        words = [word.format(**places) for word in command.split()]
        return Refusal(words, self.daemon.refused(id, *words, code=(1, 2)))

    def follow(self, refusal: Refusal, step: str) -> None:
        """Executes the shortest command of a message that begins like this, with values for words such as URI.

        `--`: the command that was refused, with the option that the message names; `again`: as it was."""
        if step == "again":
            self.daemon(*refusal.words)
            return
        if step == "--":
            added = ADDED.search(refusal.message.text)
            assert added, refusal.message
            self.daemon(*refusal.words, added[1])
            return
        commands = [found[0] for found in COMMAND.finditer(refusal.message.text) if found[0].startswith(step)]
        assert commands, f"no {step}: {refusal.message}"
        given = {"URI": f"file:{self.store}", "FOLDER": str(self.folder / "out"), "SIZE": "20MiB"}
        words = [given.get(word, word) for word in shlex.split(min(commands, key=len))]
        if words[0] == "forebay":
            result = self.daemon(*words[1:], ok=False)
            # The daemon opens a pool by itself within a second after its device has come.
            is_open = words[1:3] == ["pool", "open"] and [message.id for message in result.messages] == ["pool.open"]
            assert result.code == 0 or is_open, result.describe()
        else:
            run(words)

    # --- what holds when a message was followed

    def is_served(self) -> None:
        """The volume reads as it was written, and so does its backing store once everything is written back."""
        assert self.daemon.volume("db")["state"] == "serving"
        eventually(lambda: not self.daemon.alarms(), 30, "there is no alarm")
        self.reads(*BASE)
        self.reads(*DIRTY)
        self.can_be_written_back()

    def works(self) -> None:
        """As before; the cache is new, and nothing was written yet."""
        self.write(*BASE)
        self.write(*DIRTY)
        self.is_served()

    def can_be_written_back(self) -> None:
        self.daemon("flush", "db")
        self.is_on_store()

    def is_on_store(self) -> None:
        self.daemon.stop()
        with self.store.open("rb") as file:
            for offset, data in (BASE, DIRTY):
                assert os.pread(file.fileno(), len(data), offset) == data, f"the store lacks data at {offset}"

    def is_extracted(self) -> None:
        """`forebay salvage` has found what only the cache had."""
        with (self.folder / "out/db.dirty").open("rb") as file:
            assert os.pread(file.fileno(), MIB, DIRTY[0]) == DIRTY[1]

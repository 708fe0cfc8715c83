"""A backing store that is elsewhere than the configuration says. All surfaces name the command, which takes the right
store and no other, and writes it into the configuration.

A wrong disk, an older copy, a smaller one, one in use, and a path with a typo leave everything as it was."""

import os
import shutil
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, write_pattern
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, random_file, sparse
from harness.mounts import loops_below
from harness.waiting import eventually

POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'
COMMAND = "forebay volume attach db --backing"


class Moved:
    """Volume `db`, with 2 MiB of dirty data, was stopped, and its store is not where it was. An older copy is."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        need("qemu-io")
        self.daemon = daemon
        self.folder = folder
        self.uri = daemon.nbd("db")
        self.old, self.new, self.older = folder / "disk.img", folder / "new/disk.img", folder / "older.img"
        sparse(self.old, 32 * MIB)
        daemon.configure(POOL.format(folder=folder))
        daemon.start()
        self.attach_anew(self.old)
        write_pattern(self.uri, 0x11, "0", "4M")
        daemon("flush", "db")
        self.write(0x31)
        text = daemon.config_path.read_text()
        lines = [line + " # the slow one" if line.startswith("backing =") else line for line in text.splitlines()]
        daemon.config_path.write_text("\n".join(lines) + "\n")
        daemon.refused(
            "volume.attached-already",
            "volume",
            "attach",
            "db",
            "--backing",
            f"file:{folder}/other.img",
            mentions=["db"],
        )
        daemon.stop()
        shutil.copyfile(self.old, self.older)
        self.new.parent.mkdir()
        self.old.rename(self.new)
        daemon.start()

    def attach_anew(self, store: Path) -> None:
        """As a volume that is not configured."""
        words = ["--pool", "fast", "--backing", store, "--export", self.uri, "--set", "idle_delay=off"]
        self.daemon("volume", "attach", "db", *words)

    def write(self, byte: int) -> None:
        write_pattern(self.uri, byte, "4M", "2M")

    def has(self, byte: int) -> None:
        has_pattern(self.uri, byte, "4M", "2M")

    def is_absent(self) -> None:
        assert self.daemon.volumes()["db"]["state"] == "absent", self.daemon.volumes()

    def refuses(self, id: str, store: Path, *mentions: object, code: int | tuple[int, ...] = 1) -> None:
        """This store is not taken, and the configuration is what it was."""
        before = self.daemon.config_path.read_text()
        backing = f"file:{store}"
        self.daemon.refused(id, "volume", "attach", "db", "--backing", backing, code=code, mentions=mentions)
        assert self.daemon.config_path.read_text() == before, "the configuration was changed"
        self.is_absent()

    def take(self, store: Path) -> None:
        self.daemon("volume", "attach", "db", "--backing", f"file:{store}")


@pytest.fixture
def moved(daemon: Daemon, folder: Path) -> Moved:
    return Moved(daemon, folder)


def test_all_surfaces_name_the_command(moved: Moved, daemon: Daemon) -> None:
    moved.is_absent()
    daemon.logged("device.missing", ["db", COMMAND])
    assert daemon.pool("fast")["absent"] == {"db": 2 * MIB}
    assert "db" in daemon("pool", "show", "fast").stdout
    assert COMMAND in daemon.volume("db")["why"], daemon.volume("db")
    assert any(COMMAND in alarm["message"] for alarm in daemon.alarms() if alarm["volume"] == "db"), daemon.alarms()
    daemon.forebay.env["COLUMNS"] = "400"  # no line of a table is wrapped
    for screen in (
        ["status"],
        ["volume", "show", "db"],
        ["alarms"],
        ["alarms", "--json"],
        ["volume", "show", "db", "--json"],
    ):
        shown = daemon(*screen, ok=False).stdout
        assert COMMAND in shown, f"{screen}: {shown}"
    daemon.stop()


def test_only_the_right_store_is_taken(moved: Moved, daemon: Daemon, folder: Path) -> None:
    other = random_file(folder / "other.img", 32 * MIB)
    small = folder / "small.img"
    shutil.copyfile(moved.new, small)
    os.truncate(small, 16 * MIB)
    typo = folder / "new/disc.img"
    moved.refuses("backing.unreadable", typo, typo)
    moved.refuses("backing.not-the-one", other, "on_backing_change")
    moved.refuses("backing.changed", moved.older, "on_backing_change")  # a copy, with another time
    moved.refuses("backing.not-the-one", small, 16 * MIB, 32 * MIB)
    moved.refuses("pool.device-in-use", folder / "flash.img", "fast", code=(1, 2))
    their = sparse(folder / "their.img", 32 * MIB)
    daemon("volume", "attach", "their", "--pool", "fast", "--backing", f"file:{their}")
    moved.refuses("pool.device-in-use", their, "their", code=(1, 2))
    daemon("volume", "detach", "their")
    moved.refuses("backing.not-the-one", sparse(folder / "empty.img", 32 * MIB))
    backing = f"file:{moved.new}"
    attach = ["volume", "attach", "db", "--backing", backing, "--set", "mode=writethrough"]
    daemon.refused("volume.exists", *attach, mentions=["--backing"])
    attach = ["volume", "attach", "mine", "--pool", "fast", "--backing", backing]
    daemon.refused("backing.dirty-elsewhere", *attach, mentions=[f"{COMMAND} file://{moved.new}"])

    moved.take(moved.new)
    is_taken(moved, daemon)
    daemon.restart()
    moved.has(0x31)
    daemon.stop()


def is_taken(moved: Moved, daemon: Daemon) -> None:
    """It is in the configuration, whose comments stay, in an event and in the log."""
    (line,) = [line for line in daemon.config_path.read_text().splitlines() if line.startswith("backing")]
    assert str(moved.new) in line, line
    assert line.endswith("# the slow one"), line
    moved.has(0x31)
    assert daemon.alarms() == []
    said = [event["message"] for event in daemon.events("volume") if event["volume"] == "db"]
    assert any(f"file://{moved.new}" in text and f"file://{moved.old}" in text for text in said), said
    daemon.logged("volume.moved", [f"file://{moved.new}"])
    daemon.refused(
        "volume.attached-already", "volume", "attach", "db", "--backing", f"file:{moved.new}", mentions=["db"]
    )


def test_moved_after_kill(moved: Moved, daemon: Daemon, folder: Path) -> None:
    moved.take(moved.new)
    moved.has(0x31)
    moved.write(0x32)
    daemon.kill()
    back = folder / "back.img"
    moved.new.rename(back)
    daemon.start()
    moved.refuses("backing.not-the-one", moved.older)
    moved.refuses("backing.not-the-one", sparse(folder / "empty.img", 32 * MIB))
    moved.take(back)
    moved.has(0x32)
    daemon("flush", "db")
    with back.open("rb") as file:
        assert os.pread(file.fileno(), 2 * MIB, 4 * MIB) == b"\x32" * 2 * MIB
    daemon.stop()


def test_copy_is_taken_when_that_is_set(moved: Moved, daemon: Daemon, folder: Path) -> None:
    copy = folder / "copy.img"
    shutil.copyfile(moved.new, copy)
    os.utime(copy, (978307200, 978307200))
    moved.refuses("backing.changed", copy, "on_backing_change=keep-dirty")
    daemon("set", "db", "on_backing_change=keep-dirty")
    moved.take(copy)
    daemon("set", "db", "on_backing_change=")
    moved.has(0x31)
    daemon("volume", "detach", "db")
    daemon.stop()


def new_loop(file: Path) -> str:
    return run(["losetup", "--find", "--show", file]).stdout.strip()


@pytest.mark.usefixtures("root")
def test_disk_has_another_name(daemon: Daemon, devices: Devices, folder: Path) -> None:
    """And another disk has its name."""
    need("qemu-io", "losetup")
    ours, theirs = sparse(folder / "a.raw", 32 * MIB), sparse(folder / "b.raw", 32 * MIB)
    with ours.open("r+b") as file:
        file.write(os.urandom(8 * MIB))
    # Only what is ours then: the name may be another test's.
    devices.at_exit(lambda: [run(["losetup", "-d", loop]) for loop in loops_below(folder)])
    name = new_loop(ours)
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    uri = daemon.nbd("db")
    words = ["--backing", name, "--export", uri, "--set", "idle_delay=off"]
    daemon("volume", "attach", "db", "--pool", "fast", *words)
    write_pattern(uri, 0x34, "4M", "2M")
    daemon.stop()
    run(["losetup", "-d", name])
    # Another test may have taken the free device meanwhile: it gives it back.
    eventually(lambda: run(["losetup", name, theirs], ok=False).code == 0, 150, f"another disk is {name}")
    another = new_loop(ours)
    daemon.start()
    assert daemon.volumes()["db"]["state"] == "absent", daemon.volumes()
    daemon("volume", "attach", "db", "--backing", another)
    has_pattern(uri, 0x34, "4M", "2M")
    daemon("flush", "db")
    daemon("volume", "detach", "db")
    daemon("pool", "remove", "fast", "--erase")
    daemon.stop()

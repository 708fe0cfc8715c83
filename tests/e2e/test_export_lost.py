"""Other programs take the file of a volume away: they unmount it, or mount something over it. An alarm and the state
of the volume tell it, a reload makes the file again, and no dead mount is left behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.mounts import abort_fuse, mounts_below
from harness.nbd import FLUSH, WRITE, Client

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = [{exports}]
idle_delay = "off"
"""


def configure(daemon: Daemon, folder: Path, *exports: str) -> None:
    daemon.configure(CONFIG.format(folder=folder, exports=", ".join(f'"{export}"' for export in exports)))


@pytest.fixture(params=["directory", "file"])
def point(request: pytest.FixtureRequest, folder: Path) -> Path:
    """What is mounted on: a directory that the daemon makes, or a regular file."""
    if request.param == "directory":
        return folder / "vol"
    (folder / "vol").mkdir()
    return sparse(folder / "vol/db.img", MIB)


@pytest.fixture
def file(folder: Path) -> Path:
    """The volume as a file."""
    return folder / "vol/db.img"


@pytest.fixture
def serving(fuse: None, daemon: Daemon, folder: Path, point: Path, file: Path) -> Iterator[Daemon]:
    """Volume `db` as a file and over NBD, with a first MiB that is dirty."""
    del fuse, point
    sparse(folder / "db.img", 64 * MIB)
    configure(daemon, folder, f"fuse:{file}", daemon.nbd("db"))
    daemon.start()
    with Client(str(daemon.socket("db")), "db") as client:
        assert client.call(WRITE, 0, MIB, b"\x5a" * MIB)[0] == 0
        assert client.call(FLUSH)[0] == 0
    yield daemon
    abort_fuse(folder)


def first_mib(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MIB)


def is_lost(daemon: Daemon, file: Path) -> None:
    """Every surface tells that the file has gone."""
    alarm = daemon.alarmed("export.lost", volume="db")
    assert str(file) in alarm["message"], alarm
    volume = daemon.volume("db")
    assert volume["state"] == "export-lost", volume
    assert volume["exports"] == [daemon.nbd("db")], volume
    assert daemon.api.metrics()['forebay_volume_state{pool="fast",volume="db",state="export-lost"}'] == 1
    assert "export-lost" in daemon("volume", "list").stdout
    daemon.logged("export.lost", [file])


def is_back(daemon: Daemon, file: Path) -> None:
    daemon.quiet("export.lost")
    volume = daemon.volume("db")
    assert volume["state"] == "serving", volume
    assert sorted(volume["exports"]) == sorted([f"fuse://{file}", daemon.nbd("db")])
    assert first_mib(file) == b"\x5a" * MIB
    daemon.logged("export.back", ["db"])


def test_unmounted_file_comes_back_with_reload(serving: Daemon, point: Path, file: Path) -> None:
    run(["umount", point])
    is_lost(serving, file)
    serving("reload")
    is_back(serving, file)
    serving("volume", "detach", "db")
    assert not mounts_below(serving.folder)
    serving.stop()


def test_file_unmounted_while_open(serving: Daemon, point: Path, file: Path) -> None:
    """Unmounted lazily: the file that is open is served on, also beside the new one."""
    with file.open("rb", buffering=0) as opened:
        run(["umount", "-l", point])
        is_lost(serving, file)
        assert os.pread(opened.fileno(), MIB, 0) == b"\x5a" * MIB
        serving("reload")
        is_back(serving, file)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(opened.fileno(), MIB, 0) == b"\x5a" * MIB
        serving.refused("volume.in-use", "volume", "detach", "db", mentions=[file])
    serving("volume", "detach", "db")
    assert not mounts_below(serving.folder)
    serving.stop()


def test_covered_file(serving: Daemon, devices: Devices, folder: Path, file: Path) -> None:
    """A mount over it hides it. A detach would leave a dead mount below, and is refused until that has gone."""
    other = sparse(folder / "other.img", MIB)
    run(["mount", "--bind", other, file])
    devices.at_exit(lambda: run(["umount", file], ok=False))
    is_lost(serving, file)
    serving("reload")
    assert serving.volume("db")["state"] == "export-lost"
    serving.refused("volume.in-use", "volume", "detach", "db", mentions=[file])
    run(["umount", file])
    is_back(serving, file)
    serving("volume", "detach", "db")
    assert not mounts_below(folder)
    serving.stop()


def test_covered_folder(serving: Daemon, devices: Devices, folder: Path, file: Path) -> None:
    run(["mount", "-t", "tmpfs", "none", file.parent])
    devices.at_exit(lambda: run(["umount", file.parent], ok=False))
    is_lost(serving, file)
    run(["umount", file.parent])
    is_back(serving, file)
    serving.stop()
    assert not mounts_below(folder)


def test_lost_file_that_is_configured_no_more(serving: Daemon, folder: Path, point: Path, file: Path) -> None:
    run(["umount", point])
    is_lost(serving, file)
    configure(serving, folder, serving.nbd("db"))
    serving("reload")
    serving.quiet("export.lost")
    assert serving.volume("db")["state"] == "serving"
    assert not mounts_below(folder)
    # And a file that is configured anew is made.
    configure(serving, folder, f"fuse:{file}", serving.nbd("db"))
    serving("reload")
    assert first_mib(file) == b"\x5a" * MIB
    serving.stop()


def test_lost_file_at_stop_and_start(serving: Daemon, point: Path, file: Path) -> None:
    run(["umount", point])
    is_lost(serving, file)
    serving.restart()
    assert serving.alarms() == []
    assert first_mib(file) == b"\x5a" * MIB
    serving.stop()

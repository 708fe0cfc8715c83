"""A volume's file through /dev/fuse and over io_uring: `volume show` says which, and what would enable the other.
Either way fio reads back what it wrote, kill -9 under load loses nothing that was acknowledged, and the file grows,
an upgrade is refused, and a detach cuts it off while it is open."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.block_writer import BlockWriter
from harness.clients import fio, need
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.mounts import abort_fuse, read_directly
from harness.waiting import eventually

SWITCH = Path("/sys/module/fuse/parameters/enable_uring")
CONFIG = """
[pool.fast]
{pool}
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["fuse:{folder}/vol/db.img"]
idle_delay = "off"
"""
DEV_FUSE, IO_URING = "/dev/fuse", "io_uring"
# What `volume show` says about each way: what would enable the other; how many queues there are.
DETAIL = {DEV_FUSE: f"echo Y > {SWITCH}", IO_URING: str(os.sysconf("SC_NPROCESSORS_CONF"))}


@pytest.fixture
def switch() -> Iterator[Path]:
    """The kernel's switch, which is the whole machine's: one test has it, and puts it back."""
    if not SWITCH.exists():
        pytest.skip("this kernel has no FUSE over io_uring (Linux 6.14, CONFIG_FUSE_IO_URING)")
    if not os.access(SWITCH, os.W_OK):
        pytest.skip(f"no right to write {SWITCH}")
    with SWITCH.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = SWITCH.read_text()
        yield SWITCH
        SWITCH.write_text(found)


@pytest.fixture
def prepared(switch: Path, fuse: None, daemon: Daemon, devices: Devices, folder: Path) -> Daemon:
    """Volume `db` with 96 MiB, which is not yet served."""
    del switch, fuse
    need("fio")
    devices.at_exit(lambda: abort_fuse(folder))
    sparse(folder / "disk.img", 96 * MIB)
    daemon.configure(CONFIG.format(folder=folder, pool=""))
    return daemon


def file_of(daemon: Daemon) -> Path:
    return daemon.folder / "vol/db.img"


def shows(daemon: Daemon, over: str, detail: str) -> None:
    """`volume show` says so, on the screen and as JSON."""
    (file,) = daemon.json("volume", "show", "db")["files"]
    assert (file["over"], file["export"]) == (over, f"fuse://{file_of(daemon)}"), file
    assert detail in file["detail"], file
    assert over in daemon("volume", "show", "db").stdout


def use(daemon: Daemon) -> None:
    """After the first request the kernel has begun with its queues."""
    read_directly(file_of(daemon))


def fio_reads_what_it_wrote(daemon: Daemon) -> None:
    """Whole blocks and parts of them."""
    shape = ["--rw=randrw", "--bsrange=512-1536k", "--blockalign=512", "--direct=1", "--fsync=64", "--numjobs=1"]
    for engine in ("psync", "io_uring"):
        target = [
            f"--filename={file_of(daemon)}",
            "--size=64M",
            "--io_size=24M",
            f"--ioengine={engine}",
            "--iodepth=16",
        ]
        fio(daemon.folder, engine, *target, *shape)


def acknowledged_writes_survive_kill(daemon: Daemon) -> None:
    writer = BlockWriter(daemon.folder, file_of(daemon))
    time.sleep(0.5)
    daemon.kill()
    writer.ends()
    daemon.start()
    writer.check()


@contextlib.contextmanager
def opened(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def is_cut_off(fd: int) -> None:
    with pytest.raises(OSError):
        os.pread(fd, 1, 0)


def changes_while_open(daemon: Daemon, over: str) -> None:
    """It grows; an upgrade and a detach are refused; a forced detach and the end of the daemon cut it off."""
    file = file_of(daemon)
    with opened(file) as fd:
        os.truncate(daemon.folder / "disk.img", 128 * MIB)
        daemon("volume", "resize", "db", "max")
        # The kernel believes what it knows for a moment.
        eventually(lambda: file.stat().st_size == 128 * MIB, 20, "the file grows")
        daemon.refused("upgrade.blocked", "upgrade", mentions=["fuse:"])
        daemon.refused("volume.in-use", "volume", "detach", "db", mentions=["db"])
        daemon("volume", "detach", "db", "--force")
        is_cut_off(fd)
    backing = f"file:{daemon.folder}/disk.img"
    daemon("volume", "attach", "db", "--backing", backing, "--pool", "fast", "--export", f"fuse:{file}")
    if over == IO_URING:
        use(daemon)
    shows(daemon, over, DETAIL[over])
    with opened(file) as fd:
        daemon.stop()
        is_cut_off(fd)


@pytest.mark.heavy
@pytest.mark.parametrize("over", [DEV_FUSE, IO_URING], ids=["dev_fuse", "io_uring"])
def test_file_is_sound(prepared: Daemon, switch: Path, over: str) -> None:
    switch.write_text("Y" if over == IO_URING else "N")
    prepared.start()
    if over == IO_URING:
        use(prepared)
    shows(prepared, over, DETAIL[over])
    fio_reads_what_it_wrote(prepared)
    for _ in range(2):
        acknowledged_writes_survive_kill(prepared)
    shows(prepared, over, DETAIL[over])
    changes_while_open(prepared, over)


def test_mount_keeps_its_way(prepared: Daemon, switch: Path) -> None:
    switch.write_text("Y")
    prepared.start()
    use(prepared)
    shows(prepared, IO_URING, DETAIL[IO_URING])
    switch.write_text("N")
    use(prepared)
    shows(prepared, IO_URING, DETAIL[IO_URING])
    prepared.restart()
    shows(prepared, DEV_FUSE, DETAIL[DEV_FUSE])
    prepared.stop()


def test_daemon_with_threads_uses_dev_fuse(prepared: Daemon, switch: Path) -> None:
    switch.write_text("Y")
    prepared.configure(CONFIG.format(folder=prepared.folder, pool='io = "psync"'))
    prepared.start()
    shows(prepared, DEV_FUSE, "psync")
    prepared.stop()

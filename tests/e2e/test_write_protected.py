"""A block device that is write-protected is neither backing store nor cache. One that becomes so while it is served
keeps what is dirty in the cache: the alarm has the cause, and what would wait for ever ends."""

import os
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.nbd import FLUSH, WRITE, Client
from harness.process import Process
from harness.waiting import eventually

THROTTLED = 'forebay_throttled_writes_total{pool="fast",volume="db"}'
POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'


@pytest.fixture
def disk(devices: Devices, folder: Path) -> Path:
    need("losetup", "blockdev", "qemu-io")
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    return devices.loop(sparse(folder / "disk.img", 64 * MIB))


@pytest.fixture
def serving(daemon: Daemon, folder: Path) -> Daemon:
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    return daemon


def attach(daemon: Daemon, disk: Path) -> list[object]:
    return ["volume", "attach", "db", "--backing", disk, "--export", daemon.nbd("db"), "--set", "idle_delay=off"]


def write(daemon: Daemon) -> None:
    with Client(str(daemon.socket("db")), "db") as client:
        assert client.call(WRITE, 0, MIB, b"\x5a" * MIB)[0] == 0
        assert client.call(FLUSH)[0] == 0


def on_disk(disk: Path) -> bytes:
    with disk.open("rb") as file:
        return file.read(MIB)


def test_write_protected_device_is_refused(serving: Daemon, devices: Devices, folder: Path, disk: Path) -> None:
    """A loop device that was made so, and a disk that was told so: until it may be written, as the message says."""
    never = devices.loop(sparse(folder / "other.img", 64 * MIB), "--read-only")
    run(["blockdev", "--setro", disk])
    for device in (never, disk):
        serving.refused("device.write-protected", *attach(serving, device), mentions=[device])
        serving.refused("device.write-protected", "pool", "create", "more", "--device", device, mentions=[device])
    run(["blockdev", "--setrw", disk])
    serving(*attach(serving, disk))
    write(serving)
    serving("volume", "detach", "db")
    assert on_disk(disk) == b"\x5a" * MIB
    serving.stop()


def test_device_becomes_write_protected(serving: Daemon, disk: Path) -> None:
    serving(*attach(serving, disk))
    run(["blockdev", "--setro", disk])
    write(serving)
    for command in (["flush", "db"], ["volume", "detach", "db"]):
        refusal = ["device.write-protected", *command]
        serving.refused(*refusal, mentions=[disk, "db", "--setrw", "--keep"], seconds=60)
    alarm = serving.alarmed("destage.failed", volume="db")
    assert str(disk) in alarm["message"], alarm
    # Mended as the message says: all goes on by itself.
    run(["blockdev", "--setrw", disk])
    serving("flush", "db")
    serving.quiet("destage.failed", volume="db")
    assert on_disk(disk) == b"\x5a" * MIB
    serving.stop()


def test_write_protected_device_can_be_left(serving: Daemon, disk: Path) -> None:
    """With --keep, which the message offers; what is dirty is there when it comes back."""
    serving(*attach(serving, disk))
    run(["blockdev", "--setro", disk])
    write(serving)
    serving("volume", "detach", "db", "--keep")
    run(["blockdev", "--setrw", disk])
    serving(*attach(serving, disk))
    serving("volume", "detach", "db")
    assert on_disk(disk) == b"\x5a" * MIB
    serving.stop()


@pytest.fixture
def stuck(serving: Daemon, disk: Path, folder: Path) -> Process:
    """A client waits at the limit of a volume of which nothing can be written back."""
    serving(*attach(serving, disk), "--set", "dirty_low_pct=0", "--set", "dirty_high_pct=10")
    run(["blockdev", "--setro", disk])
    write(serving)
    writes = [word for at in range(8, 40) for word in ("-c", f"write -P 0x33 {at}M 1M")]
    client = Process(["qemu-io", "-f", "raw", *writes, serving.nbd("db")], folder / "writer.err")
    eventually(lambda: serving.api.metrics()[THROTTLED] > 0, 30, "a write waits at the limit")
    serving.alarmed("destage.failed", volume="db")
    return client


def test_stop_does_not_wait_for_writers_at_the_limit(serving: Daemon, disk: Path, stuck: Process) -> None:
    """They are refused. What was acknowledged is in the cache."""
    serving.stop()
    stuck.wait(20)
    run(["blockdev", "--setrw", disk])
    serving.start()
    serving("flush", "db")
    assert on_disk(disk) == b"\x5a" * MIB
    serving.stop()


def test_detach_does_not_wait_for_writers_at_the_limit(serving: Daemon, disk: Path, stuck: Process) -> None:
    serving("volume", "detach", "db", "--keep", "--force", seconds=60)
    stuck.wait(20)
    run(["blockdev", "--setrw", disk])
    serving(*attach(serving, disk))
    serving("volume", "detach", "db")
    assert on_disk(disk) == b"\x5a" * MIB
    serving.stop()


def test_device_is_write_protected_at_a_start(serving: Daemon, disk: Path) -> None:
    """The volume waits for it: nobody has to attach it."""
    serving(*attach(serving, disk))
    write(serving)
    serving.stop()
    run(["blockdev", "--setro", disk])
    serving.start()
    serving.alarmed("volume.failed", volume="db")
    run(["blockdev", "--setrw", disk])
    serving.quiet("volume.failed", volume="db")
    serving("flush", "db")
    assert on_disk(disk) == b"\x5a" * MIB
    serving.stop()

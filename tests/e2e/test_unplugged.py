"""A backing disk that is unplugged under a volume and comes back as another device node is used again: nothing that
was acknowledged is lost, and each surface shows it. In a guest, whose SCSI disks can be taken away."""

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "{link}"
exports = ["{export}"]
"""
BLOCK = 4096
SIZE = 32 * MIB
LINK = Path("/dev/disk/by-id/forebay-test-disk")
NODES = Path("/dev/forebay-test")
SYS = Path("/sys/class")


class Disks:
    """Two disks of a simulated host adapter each. They keep what they hold while they are away."""

    def __init__(self) -> None:
        run(["rmmod", "scsi_debug"], ok=False)  # of a test before
        before = {host.name for host in SYS.glob("scsi_host/*")}
        parameters = (f"dev_size_mb={SIZE // MIB}", "add_host=2", "per_host_store=1", "delay=0")
        run(["/sbin/insmod", "/run/modules/scsi_debug.ko", *parameters])
        hosts = {host.name for host in SYS.glob("scsi_host/*")} - before
        self.hosts = sorted(hosts, key=lambda name: int(name.removeprefix("host")))
        assert len(self.hosts) == 2, hosts

    def name(self, at: int) -> str:
        """What the kernel calls the disk of this host."""

        def found() -> str:
            blocks = list(SYS.glob(f"scsi_disk/{self.hosts[at].removeprefix('host')}:*/device/block/*"))
            return blocks[0].name if blocks else ""

        return eventually(found, 30, f"the disk of {self.hosts[at]}")

    def node(self, at: int) -> Path:
        """A device node of it. In the guest of the guide /dev/sdb is another device."""
        name = self.name(at)
        node = NODES / name
        if not node.exists():
            NODES.mkdir(exist_ok=True)
            major, minor = (Path("/sys/block") / name / "dev").read_text().split(":")
            os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
        return node

    def unplug(self, at: int) -> None:
        (Path("/sys/block") / self.name(at) / "device/delete").write_text("1")

    def plug_in(self, at: int) -> None:
        (SYS / f"scsi_host/{self.hosts[at]}/scan").write_text("- - -")
        # The kernel goes on with its probe after the scan: until then an open fails with ENXIO.
        eventually(lambda: self.answers(at), 30, "the disk is there")

    def answers(self, at: int) -> bool:
        try:
            self.node(at).open("rb").close()
        except OSError:
            return False
        return True

    def link_to(self, at: int) -> None:
        """As udev does by a serial number; but it may be told a wrong one."""
        LINK.parent.mkdir(parents=True, exist_ok=True)
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(self.node(at))


@pytest.fixture
def disks() -> Iterator[Disks]:
    disks = Disks()
    disks.link_to(0)
    yield disks
    LINK.unlink(missing_ok=True)


class Written:
    """What a volume of random content must hold."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.bytes = bytearray(random.Random(7).randbytes(SIZE))

    def client(self) -> Client:
        return Client(str(self.daemon.socket("db")), "db")

    def write(self, at: int, value: int, client: Client | None = None) -> None:
        if client is None:
            with self.client() as own:
                return self.write(at, value, own)
        data = bytes([value]) * BLOCK
        assert client.call(WRITE, at, BLOCK, data)[0] == 0
        self.bytes[at : at + BLOCK] = data
        return None

    def flush(self) -> None:
        with self.client() as client:
            assert client.call(FLUSH)[0] == 0

    def is_read(self, at: int) -> bool:
        """Whether it can be read; then it must be right."""
        with self.client() as client:
            error, data = client.call(READ, at, BLOCK)
        assert error or data == self.bytes[at : at + BLOCK], f"wrong data at {at}"
        return not error

    def check_all(self) -> None:
        with self.client() as client:
            for at in range(0, SIZE, MIB):
                error, data = client.call(READ, at, MIB)
                assert error == 0 and data == self.bytes[at : at + MIB], at


def is_told(daemon: Daemon, state: str) -> bool:
    """By the API, the metrics and the list for people."""
    volume = daemon.volume("db")
    metrics = daemon.api.request("GET", "/metrics")[1].decode()
    listed = " ".join(daemon("volume", "list").stdout.split())
    return (
        volume["backing_state"] == state
        and f'forebay_backing_state{{pool="fast",volume="db",state="{state}"}} 1' in metrics
        and (f"backing {state}" in listed) == (state != "ok")
    )


@pytest.mark.guest("guide", always=True)
@pytest.mark.limit(300)
def test_disk_comes_back_as_another_device(daemon: Daemon, disks: Disks, folder: Path) -> None:
    written = Written(daemon)
    first = disks.node(0)
    first.write_bytes(written.bytes)
    daemon.configure(CONFIG.format(folder=folder, link=LINK, export=daemon.nbd("db")))
    daemon.start()
    clean, missing, dirty, later = (at * MIB for at in (1, 2, 3, 4))
    assert written.is_read(clean)
    for value in (1, 2, 3):
        written.write(dirty, value)
    written.flush()

    disks.unplug(0)
    alarm = daemon.alarmed("device.ended", volume="db")
    assert str(LINK) in alarm["message"], alarm
    eventually(lambda: is_told(daemon, "unplugged"), 30, "it is told that the disk is gone")
    assert written.is_read(clean) and written.is_read(dirty) and not written.is_read(missing)
    written.write(later, 4)
    written.flush()

    # What has another serial number is not taken, whatever its path.
    disks.link_to(1)
    other = disks.node(1).read_bytes()
    eventually(lambda: "another disk" in daemon.volume("db")["backing_why"], 30, "another disk is not taken")
    assert not written.is_read(missing)

    disks.plug_in(0)
    assert disks.node(0) != first
    disks.link_to(0)
    daemon.quiet("device.ended", volume="db")
    eventually(lambda: is_told(daemon, "ok"), 30, "the disk is back")
    daemon.logged("device.back", [LINK])
    written.check_all()
    written.write(later + BLOCK, 5)
    daemon("flush", "db")
    assert disks.node(0).read_bytes() == bytes(written.bytes)
    assert disks.node(1).read_bytes() == other

    # The next start knows it.
    written.write(clean, 6)
    written.flush()
    daemon.kill()
    daemon.start()
    assert is_told(daemon, "ok")
    written.check_all()
    daemon("volume", "detach", "db")
    assert disks.node(0).read_bytes() == bytes(written.bytes)
    daemon.stop()


@pytest.mark.guest("guide", always=True)
@pytest.mark.limit(300)
def test_disk_that_was_changed_elsewhere_is_not_taken(daemon: Daemon, disks: Disks, folder: Path) -> None:
    """Nothing is written to it. The hint works as it stands: a restart refuses the volume, and its hint attaches it."""
    written = Written(daemon)
    disks.node(0).write_bytes(written.bytes)
    daemon.configure(CONFIG.format(folder=folder, link=LINK, export=daemon.nbd("db")))
    daemon.start()
    before, dirty = bytes(written.bytes), 4 * MIB
    disks.unplug(0)
    eventually(lambda: is_told(daemon, "unplugged"), 30, "it is told that the disk is gone")
    written.write(dirty, 9)
    written.flush()
    LINK.unlink()
    disks.plug_in(0)
    elsewhere = bytes([3]) * BLOCK
    with disks.node(0).open("r+b") as disk:
        disk.write(elsewhere)
    disks.link_to(0)
    eventually(lambda: "changed by others" in daemon.volume("db")["backing_why"], 60, "it is not taken")
    assert is_told(daemon, "unplugged")
    assert disks.node(0).read_bytes() == elsewhere + before[BLOCK:]

    daemon.restart()
    daemon.logged("backing.changed", ["db", "forebay set db on_backing_change=keep-dirty"])
    daemon("set", "db", "on_backing_change=keep-dirty")
    daemon("volume", "attach", "db")
    written.bytes[:BLOCK] = elsewhere
    written.check_all()
    daemon("flush", "db")
    assert disks.node(0).read_bytes() == bytes(written.bytes)
    daemon.stop()


@pytest.mark.guest("guide", always=True)
@pytest.mark.limit(300)
def test_disk_is_unplugged_in_the_middle_of_write_backs(daemon: Daemon, disks: Disks, folder: Path) -> None:
    """Three times, each with operations under way, and the link of udev comes late."""
    written = Written(daemon)
    disks.node(0).write_bytes(written.bytes)
    daemon.configure(CONFIG.format(folder=folder, link=LINK, export=daemon.nbd("db")))
    daemon.start()
    dice = random.Random(5)

    def write_some() -> None:
        with written.client() as client:
            for _ in range(150):
                written.write(dice.randrange(SIZE // BLOCK) * BLOCK, dice.randrange(1, 256), client)

    for number in range(3):
        write_some()
        drain = daemon.forebay.start("flush", "db", name=f"drain{number}")
        disks.unplug(0)
        write_some()
        written.flush()
        disks.plug_in(0)
        disks.node(0)
        write_some()
        disks.link_to(0)
        write_some()
        eventually(lambda: daemon.volume("db")["backing_state"] in ("ok", "failing"), 60, "the disk is back")
        drain.kill()
        daemon("flush", "db")
        assert disks.node(0).read_bytes() == bytes(written.bytes), f"round {number}"
        assert is_told(daemon, "ok")
    written.check_all()
    daemon("volume", "detach", "db")
    assert disks.node(0).read_bytes() == bytes(written.bytes)
    daemon.stop()

"""QEMU boots from a volume over vhost-user. The guest writes, reads back and compares sector after sector; meanwhile
the daemon is killed, stopped and started again, and the guest meets no error. There is no guest kernel: the boot
sector (vhost-user-qemu.s) is the program."""

import os
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import RunVolume
from harness.devices import MIB
from harness.process import Process
from harness.waiting import eventually

E2E = Path(__file__).resolve().parent
SECTORS = int(os.environ.get("SECTORS", "600"))
KILLS = int(os.environ.get("KILLS", "3"))
SECTOR = 512
# Where the guest writes first (FIRST in the program).
FIRST = 100


class BootSector:
    """QEMU with a volume as its only disk, whose boot sector is the program."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.serial = folder / "serial"
        self.serial.touch()
        memory = ["-m", "64M", "-object", "memory-backend-memfd,id=mem,size=64M,share=on"]
        volume = ["-chardev", f"socket,id=vol,path={socket},reconnect=1"]
        disk = [*volume, "-device", "vhost-user-blk-pci,chardev=vol,num-queues=2,bootindex=0"]
        command = ["qemu-system-x86_64", "-accel", "tcg", "-display", "none", "-no-reboot", "-nodefaults", *memory]
        command += ["-machine", "pc,memory-backend=mem", *disk, "-device", "isa-debug-exit,iobase=0xf4"]
        self.process = Process([*command, "-serial", f"file:{self.serial}"], folder / "qemu.err")

    @staticmethod
    def compile(folder: Path) -> bytes:
        compiled, program = folder / "guest.o", folder / "guest.bin"
        run(["as", "--32", "--defsym", f"SECTORS={SECTORS}", "-o", compiled, E2E / "vhost-user-qemu.s"])
        run(["ld", "-m", "elf_i386", "-e", "start", "-Ttext", "0x7c00", "--oformat", "binary", "-o", program, compiled])
        return program.read_bytes()

    def said(self) -> str:
        """A letter for each sector (`.` if it is right), and `!` at the end."""
        return "".join(letter for letter in self.serial.read_text(errors="replace") if letter in ".EX!")

    def reaches(self, sectors: int, seconds: float) -> None:
        """Waits until the guest has written and compared so many sectors."""
        eventually(lambda: len(self.said()) >= sectors or not self.process.is_running, seconds, f"sector {sectors}")
        assert len(self.said()) >= sectors, f"QEMU has ended at sector {len(self.said())}: {self.process.tail()}"


@pytest.fixture
def qemu() -> None:
    need("qemu-system-x86_64", "as", "ld", "nbdcopy")
    if "vhost-user-blk-pci" not in run(["qemu-system-x86_64", "-device", "help"]).stdout:
        pytest.skip("this QEMU has no vhost-user-blk")


@pytest.mark.heavy
@pytest.mark.limit(400)
def test_guest_meets_no_error_over_restarts(
    qemu: None, volume: RunVolume, folder: Path, request: pytest.FixtureRequest
) -> None:
    del qemu
    volume.make_backing(64 * MIB)
    with volume.backing.open("r+b") as backing:
        backing.write(BootSector.compile(folder))
    socket = folder / "vol.sock"
    volume.start("--export", f"vhost-user:{socket}")
    guest = BootSector(folder, socket)
    request.addfinalizer(guest.process.kill)

    for kill in range(1, KILLS + 1):
        guest.reaches(SECTORS * kill // (KILLS + 2), 120)
        if kill % 2:
            volume.kill()
        else:
            volume.stop()
        volume.start("--export", f"vhost-user:{socket}")
    guest.reaches(SECTORS + 1, 180)
    assert guest.said() == "." * SECTORS + "!", f"the guest has seen errors: {guest.process.tail()}"

    run(["nbdcopy", volume.uri, folder / "copy"])
    with (folder / "copy").open("rb") as copy:
        copy.seek(FIRST * SECTOR)
        for number in range(SECTORS):
            assert copy.read(SECTOR) == number.to_bytes(2, "little") * (SECTOR // 2), f"sector {number}"
    volume.stop()

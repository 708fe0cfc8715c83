"""A loop device that ends early and comes back whole, as a disk does that drops off its bus. Needs root.

What lies behind the end stays in the file: only the device gets shorter (`lo_sizelimit` of LOOP_SET_STATUS64,
loop.h)."""

import fcntl
import struct
import subprocess
from pathlib import Path

LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
INFO_BYTES, SIZE_LIMIT_AT = 232, 32  # struct loop_info64


def end_at(device: Path, size: int) -> None:
    """The device is so long from now on; 0: as long as its file."""
    with device.open("rb", buffering=0) as file:
        info = bytearray(INFO_BYTES)
        fcntl.ioctl(file, LOOP_GET_STATUS64, info)
        struct.pack_into("<Q", info, SIZE_LIMIT_AT, size)
        fcntl.ioctl(file, LOOP_SET_STATUS64, bytes(info))


def is_whole(device: Path) -> None:
    """The device is as long as its file again."""
    end_at(device, 0)


class LoopDevice:
    """A file as a block device, until it is released."""

    def __init__(self, file: str | Path) -> None:
        made = subprocess.run(["losetup", "--find", "--show", str(file)], check=False, capture_output=True, text=True)
        if made.returncode:
            raise OSError(f"losetup {file}: {made.stderr.strip()}")
        self.path = made.stdout.strip()

    def end_at(self, size: int) -> None:
        end_at(Path(self.path), size)

    def whole(self) -> None:
        is_whole(Path(self.path))

    def release(self) -> None:
        subprocess.run(["losetup", "--detach", self.path], check=False, capture_output=True)

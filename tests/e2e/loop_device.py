"""A loop device that can end early and come back whole, as a disk does that drops off its bus. Needs root.

What lies behind the end stays in the file: only the device gets shorter (`lo_sizelimit` of LOOP_SET_STATUS64, loop.h).

    loop_device.py end-at DEVICE BYTES    the device is this long from now on; 0: as long as its file"""

import fcntl
import struct
import subprocess
import sys
from pathlib import Path

LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
INFO_BYTES, SIZE_LIMIT_AT = 232, 32  # struct loop_info64


def end_at(device, size_bytes):
    with Path(device).open("rb", buffering=0) as file:
        info = bytearray(INFO_BYTES)
        fcntl.ioctl(file, LOOP_GET_STATUS64, info)
        struct.pack_into("<Q", info, SIZE_LIMIT_AT, size_bytes)
        fcntl.ioctl(file, LOOP_SET_STATUS64, bytes(info))


class LoopDevice:
    """A file as a block device, until it is let go."""

    def __init__(self, file):
        made = subprocess.run(["losetup", "--find", "--show", file], check=False, capture_output=True, text=True)
        if made.returncode:
            raise OSError(f"losetup {file}: {made.stderr.strip()}")
        self.path = made.stdout.strip()

    def end_at(self, size_bytes):
        end_at(self.path, size_bytes)

    def whole(self):
        end_at(self.path, 0)

    def release(self):
        subprocess.run(["losetup", "--detach", self.path], check=False, capture_output=True)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "end-at":
        sys.exit(__doc__)
    end_at(sys.argv[2], int(sys.argv[3]))

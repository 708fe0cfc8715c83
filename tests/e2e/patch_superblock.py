"""Changes a field in both superblock copies of a cache file and makes their checksums right again.

patch_superblock.py FILE FIELD VALUE [--wrong-checksum]"""

import struct
import sys
from pathlib import Path

FIELDS = {"version": (8, "<I"), "state": (12, "<I"), "generation": (32, "<Q"), "segment_count": (76, "<I")}
COPIES, SECTOR, CRC = (0, 16 * 4096), 512, 508


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283
path, field, value = sys.argv[1:4]
offset, form = FIELDS[field]
with Path(path).open("r+b") as file:
    for copy in COPIES:
        file.seek(copy)
        sector = bytearray(file.read(SECTOR))
        assert sector[:8] == b"FOREBAY\0", "not a superblock"
        stored = struct.unpack_from("<I", sector, CRC)[0]
        sector[CRC : CRC + 4] = bytes(4)
        assert stored == crc32c(sector), "the checksum was wrong before"
        struct.pack_into(form, sector, offset, int(value))
        checksum = crc32c(sector)
        if "--wrong-checksum" in sys.argv:
            checksum ^= 1
        struct.pack_into("<I", sector, CRC, checksum)
        file.seek(copy)
        file.write(sector)

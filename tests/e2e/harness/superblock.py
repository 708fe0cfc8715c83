"""Changes a field in both superblock copies of a cache file."""

import struct
from pathlib import Path

FIELDS = {"version": (8, "<I"), "state": (12, "<I"), "generation": (32, "<Q"), "segment_count": (76, "<I")}
BLOCK = 4096
# Offsets of copies A and B.
COPIES = (0, 16 * BLOCK)
SECTOR, CRC = 512, 508


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def patch(path: Path, name: str, value: int, *, wrong_checksum: bool = False) -> None:
    """Sets the field in both copies and makes their checksums right again, or wrong by one bit."""
    assert crc32c(b"123456789") == 0xE3069283
    offset, form = FIELDS[name]
    with path.open("r+b") as file:
        for copy in COPIES:
            file.seek(copy)
            sector = bytearray(file.read(SECTOR))
            assert sector[:8] == b"FOREBAY\0", "not a superblock"
            stored = struct.unpack_from("<I", sector, CRC)[0]
            sector[CRC : CRC + 4] = bytes(4)
            assert stored == crc32c(sector), "the checksum was wrong before"
            struct.pack_into(form, sector, offset, value)
            struct.pack_into("<I", sector, CRC, crc32c(sector) ^ int(wrong_checksum))
            file.seek(copy)
            file.write(sector)

"""Patterns at aligned and unaligned places, zeroes and discards, each read back with verification, also after a
restart."""

from harness.clients import need, qemu_io
from harness.daemon import RunVolume
from harness.devices import MIB

ALIGNED = """write -P 0x11 0 1M;read -P 0x11 0 1M;write -P 0x22 4k 8k;read -P 0x11 0 4k;read -P 0x22 4k 8k
read -P 0x11 12k 1012k;read -P 0 1M 1M"""
SECTORS_AND_BYTES = """write -P 0x33 2560 512;read -P 0x11 2048 512;read -P 0x33 2560 512;read -P 0x11 3072 1024
write -P 0x44 5001 3;read -P 0x22 4096 905;read -P 0x44 5001 3;read -P 0x22 5004 1000"""
ACROSS_BORDERS = """write -P 0x55 2097151 70001;read -P 0x55 2097151 70001;read -P 0 2000000 97151
read -P 0 2167152 1000"""
FUA_AND_FLUSH = "write -f -P 0x66 3M 64k;flush;read -P 0x66 3M 64k"
ZEROES = """write -P 0x77 8M 8M;write -z 8M 4k;write -z 8394240 512;write -z -u 9M 4M;read -P 0 8M 4k
read -P 0x77 8392704 1536;read -P 0 8394240 512;read -P 0x77 8394752 512k;read -P 0 9M 4M;read -P 0x77 13M 3M"""
DISCARDS = """discard 14M 1M;read -P 0 14M 1M;write -P 0x88 14M 4k;read -P 0x88 14M 4k;read -P 0 14684160 4k"""
AT_ONCE = """aio_write -P 0x99 20M 1M;aio_write -P 0xaa 21M 1M;aio_flush;read -P 0x99 20M 1M;read -P 0xaa 21M 1M"""
STAYS = """read -P 0x11 0 2560;read -P 0x33 2560 512;read -P 0x44 5001 3;read -P 0x55 2097151 70001
read -P 0x66 3M 64k;read -P 0 8M 4k;read -P 0 9M 4M;read -P 0x77 13M 1M;read -P 0x88 14M 4k
read -P 0x99 20M 1M;read -P 0xaa 21M 1M"""


def do(uri: str, commands: str) -> None:
    result = qemu_io(uri, *commands.replace("\n", ";").split(";"))
    assert not any(word in (result.stdout + result.stderr).lower() for word in ("failed", "error")), result.describe()


def test_patterns_are_read_back(volume: RunVolume) -> None:
    need("qemu-io")
    volume.make_backing(64 * MIB)
    volume.start()
    for commands in (ALIGNED, SECTORS_AND_BYTES, ACROSS_BORDERS, FUA_AND_FLUSH, ZEROES, DISCARDS, AT_ONCE):
        do(volume.uri, commands)
    volume.stop()
    volume.start()
    do(volume.uri, STAYS)
    volume.stop()

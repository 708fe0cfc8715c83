"""Discards that are too small for the backing store to get them at once become holes there all the same, by destage."""

import os

import pytest
from harness.clients import nbd_call_all
from harness.daemon import RunVolume
from harness.devices import MIB
from harness.nbd import FLUSH, READ, TRIM, WRITE, Client
from harness.waiting import eventually

KIB = 1 << 10
PIECE = 64 * KIB
DATA = 16 * MIB
BLOCK = b"x" * 4096


@pytest.mark.heavy
def test_small_discards_become_holes(volume: RunVolume) -> None:
    volume.make_backing(32 * MIB)
    volume.start("--set", "idle_delay=1s")
    client = Client(str(volume.socket), "vol", timeout=60)

    def allocated() -> int:
        return volume.backing.stat().st_blocks * 512

    writes = [(WRITE, at, MIB, os.urandom(MIB)) for at in range(0, DATA, MIB)]
    nbd_call_all(client, [*writes, (FLUSH, 0, 0, b"")])
    eventually(lambda: allocated() >= DATA, 60, "16 MiB of data are written back")

    # Again into the cache, then discarded 64 KiB at a time; one block in the middle is data again.
    discards = [(TRIM, at, PIECE, b"") for at in range(0, DATA, PIECE)]
    nbd_call_all(client, [*writes, *discards, (WRITE, 5 * MIB, len(BLOCK), BLOCK), (FLUSH, 0, 0, b"")])
    expected = bytes(4096) + BLOCK + bytes(4096)
    assert client.call(READ, 5 * MIB - 4096, len(expected)) == (0, expected)
    client.close()
    eventually(lambda: allocated() <= 512 * KIB, 60, "discards give the room back")
    volume.stop()
    left = volume.backing.read_bytes()[:DATA]
    assert left[5 * MIB : 5 * MIB + 4096] == BLOCK
    assert left.count(0) == DATA - 4096, "the backing store holds other data"

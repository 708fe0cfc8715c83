"""What the export says of itself: size, flags, block sizes, and both metadata contexts."""

import os
from pathlib import Path
from typing import Any

from harness.clients import is_served, need
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, random_file
from harness.nbd import READ, TRIM, WRITE, Client

SIZE = 100 * MIB
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/thin.img"
exports = ["{uri}"]
idle_delay = "off"
"""
CONTEXTS = ("base:allocation", "forebay:cache")


def test_export_describes_itself(volume: RunVolume) -> None:
    need("nbdinfo")
    volume.make_backing(SIZE)
    volume.start()
    export = run(["nbdinfo", "--json", volume.uri]).json()["exports"][0]
    assert export["export-size"] == SIZE
    assert export["is_read_only"] is False
    for flag in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
        assert export[flag] is True, flag
    for limit in ("minimum", "preferred", "maximum"):
        size = export[f"block_size_{limit}"]
        assert size > 0 and size & (size - 1) == 0, f"the {limit} block size {size} is not a power of two"
    assert export["block_size_preferred"] == 4096
    assert set(CONTEXTS) <= set(export["contexts"])
    volume.stop()


def test_unknown_export_is_refused(volume: RunVolume) -> None:
    need("nbdinfo")
    volume.make_backing(SIZE)
    volume.start()
    assert run(["nbdinfo", "--size", f"nbd+unix:///nothere?socket={volume.socket}"], ok=False).code != 0
    listed = run(["nbdinfo", "--list", "--json", f"nbd+unix:///?socket={volume.socket}"]).json()["exports"]
    assert [export["export-name"] for export in listed] == ["vol"]
    assert is_served(volume.uri) == SIZE
    volume.stop()


def test_maps_cover_the_volume(volume: RunVolume, folder: Path) -> None:
    """What was just written is cached."""
    need("nbdinfo", "nbdcopy")
    volume.make_backing(SIZE)
    volume.start()
    run(["nbdcopy", random_file(folder / "data", 4 * MIB), volume.uri])
    extents: list[dict[str, Any]] = []
    for context in CONTEXTS:
        extents = run(["nbdinfo", f"--map={context}", "--json", volume.uri]).json()
        assert sum(extent["length"] for extent in extents) == SIZE, f"{context}: {extents}"
    assert extents[0]["type"] != 0, f"freshly written data is not cached: {extents}"
    volume.stop()


def test_holes_of_the_store_are_told(daemon: Daemon, folder: Path) -> None:
    """Holes read as zeroes and are told as such; what is cached, dirty or written past the cache is data. A copy of a
    thin image reads what is in it."""
    need("nbdinfo", "qemu-img")
    (folder / "thin.img").touch()
    os.truncate(folder / "thin.img", 4096 * MIB)
    daemon.configure(CONFIG.format(folder=folder, uri=daemon.nbd("db")))
    daemon.start()

    def extents() -> list[tuple[int, int, bool]]:
        listed = run(["nbdinfo", "--map=base:allocation", "--json", daemon.nbd("db")]).json()
        merged: list[tuple[int, int, bool]] = []
        for extent in listed:
            hole = extent["type"] == 3
            assert hole or extent["type"] == 0, extent
            if merged and merged[-1][2] == hole:
                merged[-1] = (merged[-1][0], merged[-1][1] + extent["length"], hole)
            else:
                merged.append((extent["offset"], extent["length"], hole))
        return merged

    whole = [(0, 4096 * MIB, True)]
    assert extents() == whole
    with Client(str(daemon.socket("db")), "db") as client:
        assert client.call(WRITE, 1024 * MIB, MIB, b"\x11" * MIB)[0] == 0
    written = [(0, 1024 * MIB, True), (1024 * MIB, MIB, False), (1025 * MIB, 3071 * MIB, True)]
    assert extents() == written
    daemon("flush", "db")
    daemon("set", "db", "mode=passthrough")
    assert extents() == written
    with Client(str(daemon.socket("db")), "db") as client:
        assert client.call(WRITE, 2048 * MIB, MIB, b"\x12" * MIB)[0] == 0
    assert [extent for extent in extents() if not extent[2]] == [(1024 * MIB, MIB, False), (2048 * MIB, MIB, False)]
    before = daemon.api.get("/v1/volumes/db/stats")["read_bytes"]
    run(["qemu-img", "convert", "-f", "raw", "-O", "raw", daemon.nbd("db"), folder / "copy.img"])
    read = daemon.api.get("/v1/volumes/db/stats")["read_bytes"] - before
    assert 2 * MIB <= read <= 16 * MIB, read
    run(["qemu-img", "compare", "-f", "raw", "-F", "raw", daemon.nbd("db"), folder / "copy.img"])
    with Client(str(daemon.socket("db")), "db") as client:
        assert client.call(TRIM, 1024 * MIB, MIB)[0] == 0
    assert [extent for extent in extents() if not extent[2]] == [(2048 * MIB, MIB, False)]
    # A store that was cut: what is missing is an error for who reads it, never a hole.
    os.truncate(folder / "thin.img", 3072 * MIB)
    assert extents()[-1] == (3072 * MIB, 1024 * MIB, False)
    with Client(str(daemon.socket("db")), "db") as client:
        assert client.call(READ, 3500 * MIB, 4096)[0] != 0
    os.truncate(folder / "thin.img", 4096 * MIB)
    daemon.stop()

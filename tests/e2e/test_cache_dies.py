"""The cache device fails while it is used. Clients of a volume without dirty data meet no error. Of a write-back volume
exactly what cannot be read any more answers with errors, is listed, and heals when it is written; after a restart too.

The device is a file on a tmpfs. It fails for writes when the tmpfs is full, and for everything when the file is cut and
the tmpfs leaves no room to write it again."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.clients import fio_nbd, need
from harness.daemon import Daemon
from harness.devices import MIB, Devices, cut_off, sparse
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import SLOWNESS, eventually

SIZE = 8 * MIB
CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash/cache.img", size = "{size}" }}]
cache_allocation = "sparse"

[volume.through]
pool = "fast"
backing = "file:{folder}/through.img"
exports = ["{through}"]
mode = "writethrough"

[volume.back]
pool = "fast"
backing = "file:{folder}/back.img"
exports = ["{back}"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


def configure(daemon: Daemon, folder: Path, size: str) -> None:
    need("fio")
    for name in ("through", "back"):
        sparse(folder / f"{name}.img", 64 * MIB)
    daemon.configure(CONFIG.format(folder=folder, size=size, through=daemon.nbd("through"), back=daemon.nbd("back")))


def fio_on(daemon: Daemon, volume: str, *options: str) -> None:
    fio_nbd(daemon.folder, volume, daemon.nbd(volume), "--iodepth=8", "--bs=16k", *options).succeeds()


def record(daemon: Daemon) -> Path:
    """The record of the cache that failed."""
    (path,) = (daemon.state_dir / "failed-caches").glob("*.json")
    return path


def listed(daemon: Daemon) -> list[Any]:
    """Ranges of volume `back` that the record lists; it lists none of another volume."""
    volumes = json.loads(record(daemon).read_text())["volumes"]
    assert all(volume["name"] == "back" for volume in volumes if volume["lost"]), volumes
    return [part for volume in volumes for part in volume["lost"]]


def has_failed(daemon: Daemon) -> None:
    """The alarm is there, and the rescue of what could still be read has ended."""
    daemon.alarmed("cache.failed", 40, pool="fast")
    # Raised when the cache is given up, and again when everything that could be read was written back.
    eventually(lambda: daemon.alarm("cache.failed", pool="fast")["repeats"], 30, "the rescue has ended")
    assert daemon.pool("fast")["cache_failed"]


def test_full_device_loses_nothing(daemon: Daemon, devices: Devices, folder: Path) -> None:
    """It takes no more writes, but can be read."""
    flash = devices.tmpfs("flash", "40M") / "cache.img"
    configure(daemon, folder, "96MiB")
    daemon.start()
    fio_on(daemon, "back", "--rw=write", "--size=48M", "--do_verify=1")
    has_failed(daemon)
    assert listed(daemon) == []
    assert daemon.volume("back")["lost_bytes"] == 0
    fio_on(daemon, "through", "--rw=randrw", "--size=32M", "--do_verify=1")

    # After a restart the cache stays closed, and everything is there.
    daemon.kill()
    daemon.start()
    assert daemon.alarm("cache.failed", pool="fast")
    fio_on(daemon, "back", "--rw=write", "--size=48M", "--verify_only=1")
    daemon.stop()

    # Without its record the cache itself says that it failed.
    daemon.state_dir.rename(folder / "state.there")
    daemon.start()
    assert daemon.alarm("pool.failed", pool="fast")
    assert daemon.pool("fast")["not_open"]
    daemon.logged("cache.given-up", ["fast", flash])
    daemon.kill()
    check = daemon("check", flash, "--json", ok=False)
    assert check.code == 1, check.describe()
    assert check.json()["state"] == "failed", check.describe()
    inspected = daemon.json("inspect", flash)
    assert any(superblock["state"] == "failed" for superblock in inspected["superblocks"]), inspected
    (folder / "salvaged").mkdir()
    salvage = daemon("salvage", flash, "--state-dir", daemon.state_dir, "--to", folder / "salvaged", "--json", ok=False)
    salvaged = salvage.json()
    assert salvaged["dirty_bytes"] == 0, salvage.describe()
    assert salvaged["uncertain_bytes"] > 0, salvage.describe()
    assert any("failed-caches" in doubt for doubt in salvaged["doubts"]), salvage.describe()


class Sectors:
    """The first 8 MiB of volume `back`: each sector names itself."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def client(self) -> Client:
        return Client(str(self.daemon.socket("back")), "back")

    def fill(self) -> None:
        with self.client() as client:
            for at in range(0, SIZE, 65536):
                assert client.call(WRITE, at, 65536, sectors(at, 65536))[0] == 0
            assert client.call(FLUSH)[0] == 0

    def judge(self, lost: set[int]) -> None:
        """Each sector is right, or it is lost and answers with an error."""
        with self.client() as client:
            for at in range(0, SIZE, 512):
                self._judge_one(client, at, at in lost)

    def _judge_one(self, client: Client, at: int, lost: bool) -> None:
        error, data = client.call(READ, at, 512)
        assert bool(error) == lost, f"byte {at}: error {error}, lost {lost}"
        assert error or data == sectors(at, 512), f"byte {at}: wrong data {data[:16]!r}"

    def refuses_write(self, at: int) -> None:
        with self.client() as client:
            assert client.call(WRITE, at, 512, sectors(at, 512))[0], f"byte {at} is written"

    def heal(self, lost: set[int]) -> None:
        """Writes what is lost, as soon as that may be."""
        until = time.monotonic() + 30 * SLOWNESS
        healed: set[int] = set()
        with self.client() as client:
            for at in range(0, SIZE, 512):
                gone = at in lost and at not in healed
                self._judge_one(client, at, gone)
                if not gone:
                    continue
                # Each write waits for the record: sector by sector at first, then in larger parts.
                length = 512 if at < SIZE // 32 else 65536 - at % 65536
                while client.call(WRITE, at, length, sectors(at, length))[0]:
                    assert not healed, f"byte {at} cannot be written"
                    assert time.monotonic() < until, f"byte {at} cannot be written"
                    time.sleep(0.2)
                self._judge_one(client, at, False)
                healed |= set(range(at, at + length, 512))
            client.call(FLUSH)  # tells the clients of this start what was lost before
            assert client.call(FLUSH)[0] == 0
        assert lost <= healed


def sectors(at: int, length: int) -> bytes:
    return b"".join(struct.pack("<Q", sector // 512 + 1) * 64 for sector in range(at, at + length, 512))


def lost_sectors(daemon: Daemon) -> set[int]:
    """Offsets of the sectors that the record lists."""
    parts = [range(part["offset_bytes"], part["offset_bytes"] + part["bytes"], 512) for part in listed(daemon)]
    return {at for part in parts for at in part}


@pytest.fixture
def gone(daemon: Daemon, devices: Devices, folder: Path) -> Iterator[Sectors]:
    """The cache of both volumes was cut off under load, with 8 MiB of dirty data. The state directory is a tmpfs."""
    flash = devices.tmpfs("flash", "40M") / "cache.img"
    devices.tmpfs(daemon.state_dir.name, "4M")
    configure(daemon, folder, "32MiB")
    daemon.start()
    back = Sectors(daemon)
    back.fill()
    options = ["--iodepth=8", "--bs=16k", "--rw=randrw", "--size=32M", "--do_verify=1", "--time_based", "--runtime=5"]
    load = fio_nbd(folder, "through", daemon.nbd("through"), *options)
    eventually(lambda: daemon.json("stats", "through")["writes"] > 100, 20, "the load writes")
    assert load.process.is_running
    cut_off(daemon.running, flash, "1M")
    load.succeeds()
    # A FLUSH with nothing to flush asks no device, until the daemon has found out. Then everything is known within the
    # time of the rescue.
    with back.client() as client:
        eventually(lambda: client.call(FLUSH)[0], 60, "a FLUSH tells of a loss")
        assert client.call(FLUSH)[0] == 0, "a loss is told by one FLUSH, and not by another"
    has_failed(daemon)
    yield back


@pytest.mark.heavy
def test_lost_sectors_heal_when_written(gone: Sectors, daemon: Daemon, folder: Path) -> None:
    lost = lost_sectors(daemon)
    assert lost, "nothing was lost: the test tests nothing"
    gone.judge(lost)
    daemon.refused("upgrade.blocked", "upgrade", mentions=["fast"])
    shown = daemon.json("volume", "show", "back")
    assert shown["lost_bytes"] == len(lost) * 512, shown
    assert daemon.volume("back")["lost_bytes"] == len(lost) * 512

    # Killed and started again: the same is lost.
    daemon.kill()
    daemon.start()
    assert lost_sectors(daemon) == lost
    gone.judge(lost)

    # The record cannot be brought up to date: no write over what is lost is acknowledged.
    filler = daemon.state_dir / "filler"
    fill(filler)
    gone.refuses_write(min(lost))
    daemon.logged("cache.failed", [record(daemon)])
    daemon.kill()
    daemon.start()
    gone.judge(lost)

    filler.unlink()
    gone.heal(lost)
    gone.judge(set())
    assert listed(daemon) == []
    another_cache_is_used(gone, daemon, folder)


def fill(filler: Path) -> None:
    """Takes all the room that there is on a small file system."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def another_cache_is_used(back: Sectors, daemon: Daemon, folder: Path) -> None:
    assert daemon.pool("fast")["cache_failed"]
    daemon("pool", "replace", "fast", "--device", f"{folder}/new.img:64MiB")
    assert not daemon.pool("fast")["cache_failed"]
    daemon.quiet("cache.failed")
    names = [Path(device["path"]).name for device in daemon.config()["pool"]["fast"]["devices"]]
    assert names == ["new.img"]
    back.judge(set())
    fio_on(daemon, "back", "--rw=randwrite", "--size=8M", "--offset=32M", "--do_verify=1")
    assert daemon.volume("back")["dirty_bytes"] > 0
    daemon.stop()
    daemon.start()
    back.judge(set())
    daemon.stop()

"""What a cache is made on: a file or device that is there, begins with zeroes and is no blank device is taken only
with --overwrite; a file system is filled only with --fill; a start that fails leaves no cache file behind; and the
sizes that the daemon writes into its file hold at the next start."""

from collections.abc import Callable
from pathlib import Path

from harness.clients import need
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, Devices, sparse


def test_empty_file_that_is_there_needs_overwrite(volume: RunVolume) -> None:
    volume.make_backing(16 * MIB)
    volume.cache_size = "16MiB"
    sparse(volume.cache, 16 * MIB)
    for cache in (f"{volume.cache}", f"{volume.cache}:16MiB"):
        offered = ["--backing", f"file:{volume.backing}", "--cache", cache, "--export", volume.uri]
        volume.forebay.refused("cache.zeroed", "run", *offered, mentions=[volume.cache, "--overwrite"])
    volume.start("--overwrite")
    volume.stop()
    volume.start()  # it is a cache now
    volume.stop()


def test_busy_store_leaves_no_cache_file(volume: RunVolume, folder: Path) -> None:
    """Nor a record of one."""
    volume.make_backing(16 * MIB)
    volume.start()
    left = folder / "left.img"
    export = ["--export", f"nbd+unix:///v?socket={folder}/v.sock"]
    offered = ["--backing", f"file:{volume.backing}", "--cache", f"{left}:16MiB"]
    volume.forebay.refused("device.in-use", "run", *offered, *export, mentions=[volume.backing])
    assert not left.exists(), "a cache file was left behind"
    records = list((volume.state_dir / "caches").glob("*.json"))
    assert len(records) == 1, records
    volume.stop()


def test_file_system_is_filled_only_with_fill(volume: RunVolume, devices: Devices, root: None) -> None:
    del root
    volume.make_backing(16 * MIB)
    volume.cache = devices.tmpfs("flash", "100M") / "cache.img"
    volume.cache_size = "97MB"
    volume.refused("cache.no-space", mentions=["97000000", "--fill"])
    volume.refused("cache.no-space", "--overwrite", mentions=["97000000", "--fill"])
    assert not volume.cache.exists(), "a cache file was left behind"
    volume.start("--fill")
    volume.stop()


def test_device_that_is_not_blank_needs_overwrite(daemon: Daemon, devices: Devices, root: None) -> None:
    del root
    need("losetup", "blkdiscard")
    disk = sparse(daemon.folder / "disk", 20 * MIB)
    device = devices.loop(disk)
    daemon.configure("")
    daemon.start()
    with device.open("r+b", buffering=0) as written:
        written.seek(20 * MIB - 1)
        written.write(b"x")
    refusal = daemon.refused("cache.zeroed", "pool", "create", "fast", "--device", device, mentions=[device])
    assert "--overwrite" in refusal.text
    others = ("--fill", "--new-cache")
    daemon.refused("cache.zeroed", "pool", "create", "fast", "--device", device, *others, mentions=[device])
    daemon("pool", "create", "fast", "--device", device, "--overwrite")
    daemon("pool", "remove", "fast", "--erase")
    run(["blkdiscard", "--zeroout", device])
    daemon("pool", "create", "fast", "--device", device)
    daemon("pool", "remove", "fast", "--erase")
    daemon.stop()


def test_sizes_in_configuration_hold(make_daemon: Callable[..., Daemon], folder: Path) -> None:
    """Those of a pool that was grown by a file, shrunk, and grown and shrunk by size."""
    daemon = make_daemon()
    sparse(folder / "db.img", 64 * MIB)
    pool = f'[pool.grown]\ndevices = [{{ path = "{folder}/one.img", size = "33000000B" }}]\n'
    volume = f'[volume.db]\npool = "grown"\nbacking = "file:{folder}/db.img"\nexports = ["{daemon.nbd("db")}"]\n'
    daemon.configure(pool + volume)
    daemon.start()
    daemon("pool", "grow", "grown", "--device", f"{folder}/two.img:16MiB")
    daemon("pool", "shrink", "grown", "--device", f"{folder}/two.img")
    daemon.restart()
    assert daemon.volume("db")["state"] == "serving"
    daemon("pool", "grow", "grown", "--size", "40MiB")
    daemon("pool", "shrink", "grown", "--size", "24MiB")
    daemon.restart()
    assert daemon.volume("db")["state"] == "serving"
    assert not daemon.alarms()
    daemon.stop()

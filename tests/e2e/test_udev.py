"""The rule of udev: `lsblk -f` shows each device of a cache as one, with the UUID of the cache: plain, encrypted,
mirrored, a further device, and damaged. Devices that are no caches are shown as they were. In a root of its own, with
loop devices."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.system_root import SystemRoot

CONFIG = """
[pool.plain]
devices = [{{ path = "{folder}/plain", size = "64MiB" }}, {{ path = "{folder}/further", size = "64MiB" }}]

[pool.secret]
devices = [{{ path = "{folder}/secret", size = "64MiB" }}]
encryption_key_file = "{folder}/key"

[pool.safe]
devices = [{{ path = "{folder}/left", size = "64MiB" }}, {{ path = "{folder}/right", size = "64MiB" }}]
mirror = "on"
"""
CACHE = "forebay_cache"
EXT4_UUID = "11111111-2222-3333-4444-555555555555"
# Where the second superblock of a device begins.
SECOND = 65536


class Udev:
    """A root with Forebay's rule, and the devices of three caches as files."""

    def __init__(self, system: SystemRoot, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self.uuids: dict[str, str] = {}

    def shown(self, name: str) -> tuple[str | None, str | None]:
        """Type and UUID that lsblk shows of a device with the content of this file, once udev has looked at it."""
        done = run(["losetup", "--find", "--show", self.folder / name], ok=False)
        if done.code != 0:
            pytest.skip(f"there are no loop devices: {done.stderr}")
        device = Path(done.stdout.strip())
        node = self.system.path(device)
        try:
            os.mknod(node, device.stat().st_mode, device.stat().st_rdev)
            self.system.run("udevadm", "test", f"/sys/class/block/{device.name}", ok=False)
            listed = self.system.run("lsblk", "--json", "--output", "FSTYPE,UUID", device).json()["blockdevices"][0]
        finally:
            run(["losetup", "--detach", device])
            node.unlink(missing_ok=True)
            for data in self.system.path("run/udev/data").glob("b7:*"):
                data.unlink()
        return listed["fstype"], listed["uuid"]


def uuid_of(daemon: Daemon, device: Path) -> str:
    """The UUID of the cache that `forebay inspect` finds on a device, for udev."""
    properties = dict(line.split("=", 1) for line in daemon("inspect", "--udev", device).stdout.splitlines())
    return properties["ID_FS_UUID"]


@pytest.fixture
def udev(make_root: Callable[..., SystemRoot], daemon: Daemon, folder: Path) -> Udev:
    need("udevadm", "lsblk", "losetup", "mkfs.ext4")
    made = Udev(make_root(), folder)
    made.system.install()
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(64))
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    # A cache that a daemon has open is recognised.
    made.uuids = {name: uuid_of(daemon, folder / name) for name in ("plain", "secret", "left")}
    assert all(made.uuids.values())
    daemon.stop()
    return made


def spoil(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"spoilt")


def test_lsblk_shows_devices_of_caches(udev: Udev) -> None:
    """Every device has the UUID of its cache, also if one of its superblocks is damaged; none if both are."""
    caches = {"plain": "plain", "further": "plain", "secret": "secret", "left": "left", "right": "left"}
    for device, cache in caches.items():
        assert udev.shown(device) == (CACHE, udev.uuids[cache]), device
    damaged = udev.folder / "damaged"
    shutil.copy(udev.folder / "plain", damaged)
    spoil(damaged, 20)
    assert udev.shown("damaged") == (CACHE, udev.uuids["plain"]), "one superblock is damaged"
    spoil(damaged, SECOND + 30)
    assert udev.shown("damaged") == (CACHE, None), "both superblocks are damaged"


def test_lsblk_shows_other_devices_as_before(udev: Udev) -> None:
    """Also where a copy of a superblock survives on a device that was formatted."""
    sparse(udev.folder / "blank", 64 * MIB)
    assert udev.shown("blank") == (None, None)
    sparse(udev.folder / "short", 512)
    assert udev.shown("short") == (None, None)
    formatted = udev.folder / "plain"
    run(["mkfs.ext4", "-q", "-F", "-U", EXT4_UUID, formatted])
    with (udev.folder / "left").open("rb") as cache, formatted.open("r+b") as file:
        file.seek(SECOND)
        file.write(os.pread(cache.fileno(), 4096, SECOND))
    assert udev.shown("plain") == ("ext4", EXT4_UUID)

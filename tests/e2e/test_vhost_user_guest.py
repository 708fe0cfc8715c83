"""A Linux guest with a file system on a volume over vhost-user. The daemon is killed and stopped under its load, and
the volume grows: fio meets no error and finds what it wrote, and the backing store has it in the end."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, assert_same, sparse
from harness.driven_guest import DrivenGuest

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["vhost-user:{folder}/db.sock"]
"""
FILLS_LARGER_VOLUME = f"""
until [ "$(blockdev --getsize64 /dev/vda)" = {192 * MIB} ]; do sleep 0.2; done
resize2fs /dev/vda
head -c 8M /dev/urandom >/run/mnt/data
cp /run/mnt/data /run/out/data
rm /run/mnt/quiet*
fstrim /run/mnt
umount /run/mnt
"""
WRITTEN = 'forebay_written_bytes_total{pool="fast",volume="db"}'


def is_under_load(daemon: Daemon) -> None:
    """Waits until the guest has written more."""
    before = daemon.api.metrics()[WRITTEN]
    daemon.wait_for(lambda: daemon.api.metrics()[WRITTEN] > before + 2 * MIB, "the guest writes", 120)


@pytest.mark.heavy
@pytest.mark.xdist_group("guest")
@pytest.mark.limit(900)
def test_guest_outlives_daemons(daemon: Daemon, make_guest: Callable[..., DrivenGuest], folder: Path) -> None:
    need("mkfs.ext4", "fsck.ext4", "debugfs", "fio")
    store = sparse(folder / "db.img", 160 * MIB)
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    guest = make_guest([folder / "db.sock"])
    guest.run("mkfs.ext4 -q /dev/vda && mkdir /run/mnt && mount -o discard /dev/vda /run/mnt")
    guest.load("quiet", "/run/mnt", seconds=1)

    load = guest.start_load("load", "/run/mnt", stop="/run/loaded")
    for end in (daemon.kill, daemon.stop, daemon.kill):
        is_under_load(daemon)
        end()
        daemon.start()
    is_under_load(daemon)
    guest.run("touch /run/loaded")
    load.succeeds()

    sparse(store, 192 * MIB)
    daemon("volume", "resize", "db", "192MiB")
    guest.run(FILLS_LARGER_VOLUME, seconds=60)
    assert guest.kernel_errors() == ""
    guest.shut_down()

    daemon("volume", "detach", "db")
    run(["fsck.ext4", "-f", "-n", store])
    run(["debugfs", "-R", f"dump /data {folder}/data", store])
    assert_same(guest.out / "data", folder / "data", "in the backing store")
    daemon.stop()


@pytest.mark.xdist_group("guest")
@pytest.mark.limit(600)
def test_guest_finds_partitions_of_a_4kn_disk(
    daemon: Daemon, devices: Devices, make_guest: Callable[..., DrivenGuest], folder: Path
) -> None:
    """A partition table counts in sectors, and is read where the second one begins."""
    need("sfdisk", "losetup")
    disk = devices.loop(sparse(folder / "db.img", 160 * MIB), "--sector-size", "4096")
    run(["sfdisk", "--quiet", disk], stdin="label: gpt\nsize=64MiB\n")
    daemon.configure(CONFIG.format(folder=folder).replace(f"file:{folder}/db.img", str(disk)))
    daemon.start()
    assert daemon.volume("db")["sector_bytes"] == 4096
    guest = make_guest([folder / "db.sock"])
    assert guest.run("blockdev --getss /dev/vda").stdout.strip() == "4096"
    assert guest.run("blockdev --getsize64 /dev/vda1").stdout.strip() == str(64 * MIB)
    daemon.stop()

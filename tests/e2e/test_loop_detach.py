"""The way of the README, with a loop device: a file system on a volume, written while the mode changes. Then the
volume is detached and the backing image stands alone, with every byte. A daemon that serves files refuses an
upgrade."""

from pathlib import Path

from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, assert_same, random_file, sparse, unmount
from harness.mounts import LoopMount, abort_fuse

CONFIG = '\n[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'


def test_image_stands_alone_after_a_detach(fuse: None, daemon: Daemon, devices: Devices, folder: Path) -> None:
    del fuse
    need("losetup", "mkfs.ext4", "fsck.ext4", "fusermount3")
    devices.at_exit(lambda: abort_fuse(folder))
    image, data, file = folder / "disk.img", random_file(folder / "data", 24 * MIB), folder / "home/disk.img"
    run(["mkfs.ext4", "-q", "-F", sparse(image, 128 * MIB)])
    file.parent.mkdir()
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    daemon("volume", "attach", "home", "--backing", f"file:{image}", "--export", f"fuse:{file}")
    mounted = LoopMount(devices, folder / "mnt", direct=False)
    mounted.attach(file, optional=True)
    mounted.mount()

    run(["cp", data, mounted.at / "a"])
    daemon("set", "home", "mode=writethrough")
    run(["cp", data, mounted.at / "b"])
    daemon("set", "home", "mode=writeback")
    run(["cp", data, mounted.at / "c"])
    run(["sync", "-f", mounted.at])
    # Files cannot be passed on to a successor.
    daemon.refused("upgrade.blocked", "upgrade", mentions=["fuse:"])
    assert_same(data, mounted.at / "b", "after a refused upgrade")

    mounted.unmount()
    mounted.detach()
    daemon("volume", "detach", "home")
    assert not file.exists()
    run(["fsck.ext4", "-f", "-n", image])
    devices.mount("-o", "loop,ro", str(image), at=mounted.at)
    for name in ("a", "b", "c"):
        assert_same(data, mounted.at / name, "on the image alone")
    unmount(mounted.at)
    daemon.stop()

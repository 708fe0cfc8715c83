"""A package is upgraded while a file system on a block device (ublk:) is in use, as docs/operate/upgrade.md says: the
new program takes over, and who writes and compares there sees no error. It is not removed while the device is served,
nor while the device waits for a daemon that was stopped."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.block import KernelLog
from harness.clients import need
from harness.devices import assert_same
from harness.guest import SHARED
from harness.packaged import Load, Packaged
from harness.packages import make_packages, strip
from harness.system_root import SystemRoot

OLD, NEW = "0.1.1", "0.1.2"
BACKING = "/srv/forebay/db.img"
MOUNT = "/srv/db"


def make_debs(shared: Path) -> None:
    program = strip(shared)
    for version in (OLD, NEW):
        (made,) = make_packages(shared, version, "deb", program=program)
        made.rename(shared / f"{version}.deb")
    program.unlink()


@pytest.fixture
def packaged(make_root: Callable[..., SystemRoot], folder: Path) -> Packaged:
    """A root with a database of dpkg of its own. What else is installed takes long to read in a guest."""
    need("fio", "dpkg-deb", "mkfs.ext4", "setpriv")
    system = make_root(devices=True)

    def deb(version: str) -> Path:
        if SHARED.exists():
            return Path(shutil.copy(SHARED / f"{version}.deb", folder))
        return make_packages(folder / version, version, "deb")[0]

    made = Packaged(system, deb)
    made.options = ["--force-depends"]
    database = system.at / "var/lib/dpkg"
    system.run_outside("mount", "-t", "tmpfs", "dpkg", database)
    for name in ("info", "updates"):
        system.path("var/lib/dpkg").joinpath(name).mkdir()
    for name in ("status", "available"):
        system.path("var/lib/dpkg").joinpath(name).touch()
    # A device that waits for its daemon would hang whoever comes next.
    system.at_exit(lambda: system.run("systemctl", "stop", "forebay", ok=False))
    system.at_exit(lambda: system.forebay("ublk", "remove", "db", "--force", ok=False))
    system.at_exit(lambda: system.run("umount", "-l", MOUNT, ok=False))
    return made


def make_file_system(packaged: Packaged) -> None:
    """The service, with a file system on the block device of volume db."""
    system = packaged.system
    system.run(
        "install", "-D", "-m", "644", "-t", "/etc/systemd/system/forebay.service.d", "/usr/share/forebay/ublk.conf"
    )
    packaged.serve()
    packaged.attach("db", "ublk:")
    system.run("mkfs.ext4", "-q", "/dev/forebay/db")
    system.run("mkdir", MOUNT)
    system.run("mount", system.run("readlink", "-f", "/dev/forebay/db").stdout.strip(), MOUNT)


def removal_is_refused(packaged: Packaged, *commands: str) -> None:
    """dpkg does not remove the package, and says which commands lead on."""
    said = packaged.dpkg("--remove", "forebay", ok=False)
    assert all(command in said for command in commands), said
    assert packaged.has("usr/bin/forebay"), "the program is gone"


@pytest.mark.heavy
@pytest.mark.limit(300)
@pytest.mark.guest("ublk", prepare=make_debs)
def test_upgrade_under_mounted_block_device(packaged: Packaged, root: None) -> None:
    del root
    system, kernel = packaged.system, KernelLog()
    packaged.install(OLD)
    make_file_system(packaged)

    before = system.main_pid()
    shape = ["--ioengine=io_uring", "--iodepth=16", "--direct=1", "--fsync=64"]
    load = Load(packaged, "db", f"--directory={MOUNT}", *shape)
    load.writes()
    said = packaged.install(NEW)
    assert system.main_pid() != before, "the old process is the daemon"
    assert str(before) in said and str(system.main_pid()) in said, f"dpkg does not say what took over: {said}"
    assert packaged.runs_installed_program()
    load.writes()
    load.finish()
    kernel.has_no_errors("an upgrade")

    removal_is_refused(packaged, "forebay volume detach", "systemctl disable --now forebay")
    system.run("systemctl", "stop", "forebay")
    assert [device["name"] for device in system.forebay.json("ublk", "list")] == ["db"]
    removal_is_refused(packaged, "forebay ublk list", "systemctl start forebay", "forebay ublk remove")
    system.run("systemctl", "start", "forebay")
    system.run("cp", "/usr/bin/dpkg", f"{MOUNT}/after")
    assert_same(system.path("usr/bin/dpkg"), system.path(f"{MOUNT}/after"), "after it was started again")
    system.run("umount", MOUNT)
    system.forebay("volume", "detach", "db")
    packaged.dpkg("--remove", "forebay")
    assert not packaged.has("usr/bin/forebay")
    kernel.has_no_errors("the end")

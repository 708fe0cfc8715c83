"""The Debian package in a root of its own. Installed, nothing runs. Upgraded under fio, no client sees an error: the
new program takes over, or, where that cannot be, the old one goes on. Removed only when nothing is served, and data
stays."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import fio_speaks_nbd, need
from harness.packaged import Load, Packaged, dpkg_status
from harness.system_root import SystemRoot

OLD, NEW, NEWEST = "0.1.1", "0.1.2", "0.1.3"
VOL = "nbd+unix:///vol?socket=/run/forebay/vol.sock"


@pytest.fixture
def machine(make_root: Callable[..., SystemRoot], deb: Callable[[str], Path]) -> Packaged:
    need("dpkg-deb", "setpriv", "fio", "fusermount3")
    return Packaged(make_root(), deb)


def test_installed_package_runs_nothing(machine: Packaged) -> None:
    """There are a user, a configuration and folders. Purged at once, nothing is left."""
    machine.install(OLD)
    for path, owner in (
        ("/etc/forebay", "forebay:750"),
        ("/etc/forebay/forebay.toml", "forebay:640"),
        ("/etc/forebay-keys", "root:700"),
    ):
        assert machine.system.run("stat", "-c", "%U:%a", path).stdout.strip() == owner, path
    machine.system.forebay("config", "check")
    asked = machine.system.asked_of_systemctl()
    assert not [line for line in asked if re.search(r"(^| )(start|restart|enable|preset)", line)], asked
    machine.dpkg("--purge", "forebay")
    for path in ("etc/forebay", "etc/forebay-keys", "var/lib/forebay", "usr/bin/forebay", "usr/share/doc/forebay"):
        assert not machine.has(path), path
    machine.install(OLD)
    assert machine.status() == dpkg_status(OLD)


@pytest.mark.heavy
@pytest.mark.limit(400)
def test_upgrade_takes_over_nbd_clients(machine: Packaged) -> None:
    """fio over NBD sees nothing of it. Where the disk is full, the old package and its daemon go on."""
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")
    system = machine.system
    machine.install(OLD)
    machine.serve()
    machine.attach("vol", VOL)
    assert system.path("etc/forebay/forebay.toml").stat().st_mode & 0o7777 == 0o640
    before = system.main_pid()
    load = Load(machine, "vol", "--ioengine=nbd", "--iodepth=8", f"--uri={VOL}")
    load.writes()
    said = machine.install(NEW)
    load.writes()
    load.finish()
    assert system.main_pid() != before, "the old process is the daemon"
    assert str(before) in said and str(system.main_pid()) in said, f"dpkg does not say what took over: {said}"
    assert machine.runs_installed_program()

    before = system.main_pid()
    system.run_outside("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", system.at / "usr/share/forebay")
    said = machine.install(NEWEST, ok=False)
    assert "No space left" in said, f"dpkg failed for another reason: {said}"
    system.run_outside("umount", system.at / "usr/share/forebay")
    assert machine.goes_on(before) and machine.runs_installed_program(), "the program was replaced"
    assert machine.status() == dpkg_status(NEW), "the old package is not whole"
    assert [volume["name"] for volume in system.forebay.json("volume", "list")] == ["vol"]


@pytest.mark.heavy
@pytest.mark.limit(400)
def test_upgrade_leaves_files_to_old_program(machine: Packaged) -> None:
    """fio on a file of FUSE sees nothing of an upgrade: the old program goes on, and the package says what to do."""
    system = machine.system
    machine.install(OLD)
    machine.serve()
    file = "/srv/forebay/file/disk"
    machine.attach("vol", VOL)
    machine.attach("file", f"fuse:{file}")
    before = system.main_pid()
    load = Load(machine, "file", "--ioengine=psync", f"--filename={file}", user="forebay")
    load.writes()
    said = machine.install(NEW)
    load.writes()
    load.finish()
    assert machine.goes_on(before), "another process is the daemon"
    assert all(word in said for word in ("fuse:", "forebay upgrade", "systemctl restart forebay")), said
    assert machine.status() == dpkg_status(NEW)

    said = machine.dpkg("--remove", "forebay", ok=False)
    assert all(word in said for word in ("forebay volume detach", "systemctl disable --now forebay")), said
    assert machine.goes_on(before), "the daemon is gone"
    for name in ("vol", "file"):
        system.forebay("volume", "detach", name)
    said = machine.dpkg("--remove", "forebay")
    assert "/etc/forebay/forebay.toml" in said and "forebay check" in said, (
        f"no warning of what is in the caches: {said}"
    )
    assert f"({before}) has ended with 0" in system.path("run/manager.out").read_text()
    said = machine.dpkg("--purge", "forebay")
    assert not machine.has("usr/bin/forebay") and not machine.has("etc/forebay/forebay.toml")
    assert system.path("srv/forebay/flash.img").stat().st_size, "purging took a cache"
    assert list(system.path("var/lib/forebay/caches").glob("*.json")), "purging took what is known of a cache"
    assert "/var/lib/forebay" in said, said

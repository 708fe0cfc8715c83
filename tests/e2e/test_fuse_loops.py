"""FUSE files that would hide each other, backing stores and cache devices that lie on files of the daemon itself, and
places where a daemon that is stopped has its mount: the check or the attach refuses them with a reason. What is
served goes on, SIGTERM ends the daemon, and after kill -9 no process is left."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import Forebay, run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse, unmount
from harness.fuse_places import is_well, no, refused_in_the_end, wrong
from harness.mounts import LoopMount, abort_fuse
from harness.process import Process
from harness.waiting import eventually

POOLS = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
[pool.other]
devices = [{{ path = "{folder}/other.img", size = "64MiB" }}]
"""
# Files beside and below real/m/a, by several names.
HIDING = ["real/m/b", "link/m/b", "real/x/../m/b", "real/m//b", "real/./m/b", "real/m/deep/b"]
# Names of the file real/m/a: itself, through a linked folder, a link to it.
NAMES = ["real/m/a", "link/m/a", "to-a"]


@pytest.fixture
def place(fuse: None, devices: Devices, folder: Path) -> Path:
    """Backing stores a.img to e.img; `link` leads to `real`, `to-a` to the FUSE file real/m/a."""
    del fuse
    need("losetup", "mkfs.ext4")
    devices.at_exit(lambda: abort_fuse(folder))
    for name in "abcde":
        sparse(folder / f"{name}.img", 64 * MIB)
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    (folder / "to-a").symlink_to(folder / "link/m/a")
    return folder


def pools(folder: Path) -> str:
    return POOLS.format(folder=folder)


def volume(name: str, pool: str, backing: object, file: object) -> str:
    return f'[volume.{name}]\npool = "{pool}"\nbacking = "file:{backing}"\nexports = ["fuse:{file}"]\n'


def test_check_refuses_files_that_hide_others(daemon: Daemon, place: Path) -> None:
    first = volume("a", "fast", place / "a.img", place / "real/m/a")
    for hiding in HIDING:
        second = volume("b", "other", place / "b.img", f"{place}/{hiding}")
        wrong("config.conflict", daemon, pools(place) + first + second, "a", "real/m/a")
    same = volume("b", "other", place / "b.img", place / "link/m/a")
    wrong("config.conflict", daemon, pools(place) + first + same, "a", "real/m/a")


def test_check_refuses_what_waits_for_itself(daemon: Daemon, place: Path) -> None:
    a, b = place / "real/m/a", place / "mb/b"
    first = volume("a", "fast", place / "a.img", a)
    for backing in NAMES:
        wrong(
            "config.conflict", daemon, pools(place) + first + volume("b", "other", place / backing, b), place / backing
        )
    wrong("config.conflict", daemon, pools(place) + volume("a", "fast", a, a), a)
    wrong("config.conflict", daemon, pools(place) + volume("a", "fast", place / "to-a", a), place / "to-a")
    wrong("config.conflict", daemon, pools(place) + volume("a", "fast", b, a) + volume("b", "other", a, b), a)
    wrong("config.conflict", daemon, pools(place).replace(f"{place}/other.img", str(a)) + first, a)


def test_files_beside_each_other_are_accepted(daemon: Daemon, place: Path) -> None:
    (place / "both").mkdir()
    (place / "both/1").touch()
    (place / "both/2").touch()
    first = volume("a", "fast", place / "a.img", place / "both/1")
    daemon.configure(pools(place) + first + volume("b", "fast", place / "b.img", place / "both/2"))
    daemon("config", "check", daemon.config_path)


@pytest.fixture
def served(daemon: Daemon, place: Path) -> Daemon:
    """Volume `a` as the file real/m/a."""
    daemon.configure(pools(place) + volume("a", "fast", place / "a.img", place / "real/m/a"))
    daemon.start()
    is_well(daemon)
    return daemon


def attach_b(daemon: Daemon, backing: object, file: object, pool: str = "fast") -> list[object]:
    del daemon
    return ["volume", "attach", "b", "--pool", pool, "--backing", backing, "--export", f"fuse:{file}"]


def test_attach_refuses_files_that_hide_others(served: Daemon, place: Path) -> None:
    backing = f"file:{place}/b.img"
    for hiding in ("real/m/b", "link/m/b", "real/m/deep/b"):
        no("volume.definition", served, attach_b(served, backing, place / hiding), place / "real/m")
    for same in ("real/m/a", "link/m/a"):
        no("volume.definition", served, attach_b(served, backing, place / same), place / "real/m/a")
    served.stop()


def test_attach_refuses_what_waits_for_itself(served: Daemon, devices: Devices, place: Path) -> None:
    for backing in NAMES:
        for pool in ("fast", "other"):
            no(
                "volume.definition",
                served,
                attach_b(served, f"file:{place}/{backing}", place / "mb/b", pool),
                place / backing,
            )
    no("config.conflict", served, ["pool", "create", "third", "--device", place / "real/m/a"], place / "real/m/a")

    # A bind mount of the folder is seen through.
    bind = devices.mount("--bind", str(place / "real/m"), at=place / "bind")
    no("device.own-mount", served, attach_b(served, f"file:{bind}/a", place / "mb/b", "other"), bind / "a")
    unmount(bind)
    served.stop()


def test_loop_devices_are_seen_through(served: Daemon, devices: Devices, place: Path) -> None:
    mounted = LoopMount(devices, place / "fs", direct=False)
    loop = mounted.attach(place / "real/m/a")
    no("volume.definition", served, attach_b(served, loop, place / "mb/b", "other"), loop)
    no("config.conflict", served, ["pool", "create", "third", "--device", loop], loop)

    # A file on a file system on the loop device.
    run(["mkfs.ext4", "-q", loop])
    mounted.mount()
    sparse(place / "fs/c.img", 8 * MIB)
    no(
        "volume.definition",
        served,
        attach_b(served, f"file:{place}/fs/c.img", place / "mb/b", "other"),
        place / "fs/c.img",
    )
    no(
        "config.conflict",
        served,
        ["pool", "create", "third", "--device", f"{place}/fs/third.img:48MiB"],
        place / "fs/third.img",
    )
    assert not (place / "fs/third.img").exists(), "a cache file was left there"
    mounted.unmount()
    mounted.detach()
    served.stop()


@pytest.fixture
def stopped(served: Daemon, devices: Devices, place: Path) -> Iterator[Process]:
    """Another daemon, with its FUSE file theirs/d, that is stopped."""
    del served
    (place / "theirs").mkdir()
    # Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
    store = ["--backing", f"file:{place}/d.img", "--cache", f"{place}/d.cache:64MiB"]
    other = Forebay(place).start("run", "--io", "psync", *store, "--export", f"fuse:{place}/theirs/d", name="other")
    devices.at_exit(other.kill)
    eventually(lambda: "ready: " in other.stdout() or not other.is_running, 60, "the other daemon serves")
    assert (place / "theirs/d").exists(), other.tail()
    other.pause()
    yield other
    other.resume()


@pytest.mark.parametrize(
    ("id", "backing", "file"),
    [
        ("export.failed", "b.img", "theirs/d"),
        ("export.failed", "b.img", "theirs/e"),
        ("backing.not-answering", "theirs/d", "mb/b"),
    ],
)
def test_mounts_of_a_stopped_daemon(
    served: Daemon, stopped: Process, place: Path, id: str, backing: str, file: str
) -> None:
    assert stopped.state() == "T"
    theirs = place / "theirs"
    refused_in_the_end(id, served, attach_b(served, f"file:{place}/{backing}", place / file), theirs)
    served.stop()


def test_kill_beside_a_stopped_daemon(served: Daemon, stopped: Process, place: Path) -> None:
    assert stopped.state() == "T"
    asking = served.forebay.start(*attach_b(served, f"file:{place}/b.img", place / "theirs/d"), name="asking")
    time.sleep(0.5)  # it may look at the place by then
    served.kill()
    assert asking.wait() != 0

"""`forebay run` refuses wrong command lines (exit code 2), and caches, backing stores and sockets that are not as
they should be (exit code 1). Each refusal says what is wrong and what to do, and none of them loses or changes
data."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import is_served, need
from harness.command import Forebay, run
from harness.daemon import RunVolume
from harness.devices import MIB, assert_same, random_file, sparse
from harness.superblock import COPIES, patch

SIZE = 16 * MIB  # all of it fits the cache
CACHE_SIZE = 32 * MIB
# Settings under which dirty data stays in the cache.
KEEP_DIRTY = ["--set", "dirty_low_pct=90", "--set", "dirty_high_pct=90", "--set", "idle_delay=1h"]


def copy(source: Path | str, target: Path | str) -> None:
    run(["nbdcopy", "--flush", source, target])


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


class Dirty:
    """A stopped volume whose data (`image`) is in its cache alone; all of it can be put back as it was."""

    def __init__(self, volume: RunVolume) -> None:
        self.volume = volume
        self.folder = volume.folder
        self.image = random_file(self.folder / "in", SIZE)
        volume.make_backing(SIZE)
        volume.start(*KEEP_DIRTY)
        copy(self.image, volume.uri)
        volume.stop()
        assert volume.backing.read_bytes() != self.image.read_bytes(), "nothing is dirty: the test would prove nothing"
        self.good = self.folder / "good"
        self.good.mkdir()
        run(["cp", "--sparse=always", volume.cache, self.good / "cache"])
        run(["cp", "--sparse=always", "--preserve=timestamps", volume.backing, self.good / "backing"])
        shutil.copytree(volume.state_dir, self.good / "state")

    def restore(self) -> None:
        run(["cp", "--sparse=always", self.good / "cache", self.volume.cache])
        # What is recorded of the cache belongs to it: without that this would be an older copy, and refused.
        shutil.rmtree(self.volume.state_dir)
        shutil.copytree(self.good / "state", self.volume.state_dir)
        # In place: the backing store is recognised by its inode as well.
        self.volume.backing.write_bytes((self.good / "backing").read_bytes())
        shutil.copystat(self.good / "backing", self.volume.backing)

    def nothing_is_lost(self, when: str) -> None:
        self.volume.start(*KEEP_DIRTY)
        copy(self.volume.uri, self.folder / "out")
        assert_same(self.image, self.folder / "out", when)
        self.volume.stop()
        self.restore()


@pytest.fixture
def dirty(make_volume: Callable[..., RunVolume]) -> Dirty:
    need("nbdcopy", "cmp")
    return Dirty(make_volume(cache_size="32MiB"))


def test_wrong_command_lines_are_refused(volume: RunVolume, forebay: Forebay) -> None:
    volume.make_backing(SIZE)
    backing, cache, export = (f"file:{volume.backing}", f"{volume.cache}:64MiB", volume.uri)
    forebay.refused("cli.usage", "run", "--cache", cache, "--export", export, code=2, mentions=["--backing"])
    forebay.refused("cli.usage", "run", "--nonsense", code=2, mentions=["--nonsense"])
    forebay.refused("cli.usage", "frobnicate", code=2, mentions=["frobnicate"])
    volume.refused("cli.argument", "--mode", "writesideways", code=2, mentions=["writesideways", "writeback"])
    wrong_size = ["--cache", f"{volume.cache}:64XiB"]
    forebay.refused(
        "cli.argument", "run", "--backing", backing, *wrong_size, "--export", export, code=2, mentions=["64XiB"]
    )
    volume.refused("setting.unknown", "--set", "no_such_setting=1", code=2, mentions=["no_such_setting"])
    volume.refused("setting.value", "--set", "dirty_low_pct=many", code=2, mentions=["dirty_low_pct"])
    gopher = ["--backing", f"gopher:{volume.backing}"]
    forebay.refused("cli.argument", "run", *gopher, "--cache", cache, "--export", export, code=2, mentions=["gopher"])
    assert not volume.cache.exists(), "a refused command line made a cache"


def test_what_does_not_fit_is_refused(volume: RunVolume, forebay: Forebay, folder: Path) -> None:
    volume.make_backing(SIZE)
    random_file(folder / "in", SIZE)
    backing, cache, export = (f"file:{volume.backing}", f"{volume.cache}:64MiB", ["--export", volume.uri])
    missing = ["--backing", f"file:{folder}/nothere", "--cache", cache]
    forebay.refused("device.missing", "run", *missing, *export, mentions=[folder / "nothere"])
    small = ["--backing", backing, "--cache", f"{folder}/small.img:64KiB"]
    forebay.refused("cache.geometry", "run", *small, *export, mentions=[65536])

    same = ["--backing", backing, "--cache", f"{volume.backing}:64MiB"]
    forebay.refused("cache.same-device", "run", *same, *export, code=(1, 2), mentions=[volume.backing])
    (folder / "hardlink").hardlink_to(volume.backing)
    same = ["--backing", backing, "--cache", f"{folder}/hardlink:64MiB"]
    forebay.refused("cache.same-device", "run", *same, *export, code=(1, 2), mentions=[folder / "hardlink"])
    (folder / "hardlink").unlink()

    forebay.refused("device.missing", "check", folder / "nothere", mentions=[folder / "nothere"])
    forebay.refused("cache.not-a-cache", "check", folder / "in", mentions=[folder / "in"])


def test_file_that_is_no_cache_is_not_taken(volume: RunVolume, forebay: Forebay, folder: Path) -> None:
    volume.make_backing(SIZE)
    precious = random_file(folder / "precious", SIZE)
    shutil.copy(precious, folder / "in")
    offered = ["--backing", f"file:{volume.backing}", "--cache", f"{precious}:64MiB", "--export", volume.uri]
    forebay.refused("cache.foreign-data", "run", *offered, mentions=[precious])
    assert_same(folder / "in", precious, "of a file that is not a cache and was offered as one")


def test_undisturbed_restart_loses_nothing(dirty: Dirty) -> None:
    dirty.nothing_is_lost("after an undisturbed restart")


def test_truncated_cache_is_refused(dirty: Dirty) -> None:
    volume = dirty.volume
    os.truncate(volume.cache, 10 * MIB)
    refusal = volume.refused("cache.truncated", mentions=[volume.cache])
    assert refusal.hint
    volume.forebay.refused("cache.damaged", "check", volume.cache, mentions=[volume.cache])
    dirty.restore()
    dirty.nothing_is_lost("after a truncated cache")


def test_cache_of_newer_version_is_refused(dirty: Dirty, folder: Path) -> None:
    volume = dirty.volume
    patch(volume.cache, "version", 9)
    run(["cp", "--sparse=always", volume.cache, folder / "newer"])
    volume.refused("cache.foreign-data", mentions=["version 9"])
    volume.forebay.refused("cache.version", "check", volume.cache, mentions=["version 9"])
    assert_same(volume.cache, folder / "newer", "of a cache of a newer version")


def test_one_good_superblock_is_enough(dirty: Dirty) -> None:
    volume = dirty.volume
    for offset, length in zip(COPIES, (512, 4096), strict=True):
        overwrite(volume.cache, offset, os.urandom(length))
        dirty.nothing_is_lost(f"after damage to the superblock at {offset}")
    patch(volume.cache, "generation", 5, wrong_checksum=True)
    volume.refused("cache.foreign-data", mentions=[volume.cache])
    dirty.restore()
    dirty.nothing_is_lost("after damage to both superblocks")


def test_another_backing_store_is_refused(dirty: Dirty, folder: Path) -> None:
    volume = dirty.volume
    other = sparse(folder / "other.img", SIZE)
    offered = ["--backing", f"file:{other}", "--cache", f"{volume.cache}:32MiB", "--export", volume.uri]
    volume.forebay.refused("backing.changed", "run", *offered, mentions=["on_backing_change=keep-dirty"])
    assert other.read_bytes() == bytes(SIZE), "the other backing store was written to"
    dirty.nothing_is_lost("after a wrong backing store")


def test_backing_store_that_shrank_is_refused(dirty: Dirty) -> None:
    volume = dirty.volume
    os.truncate(volume.backing, SIZE // 2)
    volume.refused("backing.shrunk", mentions=[SIZE // 2, SIZE])
    dirty.restore()
    dirty.nothing_is_lost("after a backing store that shrank")


def test_changed_backing_store_is_refused(dirty: Dirty, folder: Path) -> None:
    """It changed while there was dirty data: which data counts cannot be known."""
    volume = dirty.volume
    overwrite(volume.backing, 1_000_000, b"changed by somebody else")
    shutil.copy(volume.backing, folder / "changed")
    volume.refused("backing.changed", mentions=["on_backing_change=keep-dirty"])
    assert_same(volume.backing, folder / "changed", "of a refused backing store")
    dirty.restore()
    dirty.nothing_is_lost("after a backing store that changed and was put back")


def test_changed_store_of_clean_cache_counts(volume: RunVolume, folder: Path) -> None:
    need("nbdcopy", "cmp")
    image = random_file(folder / "in", SIZE)
    volume.make_backing(SIZE)
    volume.start("--mode", "writethrough")
    copy(image, volume.uri)
    copy(volume.uri, folder / "out")
    volume.stop()
    assert_same(image, volume.backing, "after write-through")
    overwrite(volume.backing, 1_000_000, b"changed by somebody else")
    volume.start()
    copy(volume.uri, folder / "out")
    assert_same(volume.backing, folder / "out", "though the cached data was clean, and the backing store has changed")
    volume.stop()


def test_what_is_in_use_is_refused(volume: RunVolume, folder: Path) -> None:
    need("nbdinfo")
    volume.make_backing(SIZE)
    other = sparse(folder / "other.img", SIZE)
    volume.start()
    forebay = volume.forebay
    volume.refused("device.in-use", mentions=[volume.cache])
    cache = ["--cache", f"{folder}/second.img:64MiB"]
    forebay.refused(
        "export.failed", "run", "--backing", f"file:{other}", *cache, "--export", volume.uri, mentions=[volume.socket]
    )
    cache = ["--cache", f"{folder}/third.img:64MiB"]
    export = ["--export", f"nbd+unix:///vol?socket={folder}/third.sock"]
    forebay.refused(
        "device.in-use", "run", "--backing", f"file:{volume.backing}", *cache, *export, mentions=[volume.backing]
    )
    assert is_served(volume.uri) == SIZE
    volume.stop()


def test_socket_of_killed_daemon_is_no_obstacle(volume: RunVolume) -> None:
    need("nbdinfo")
    volume.make_backing(SIZE)
    volume.start()
    volume.kill()
    assert volume.socket.is_socket(), "kill -9 leaves the socket: the test would prove nothing"
    volume.start()
    assert is_served(volume.uri) == SIZE
    volume.stop()
    assert not volume.socket.exists(), "an orderly stop leaves the socket behind"

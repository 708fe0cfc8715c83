"""Dirty data of a volume that is not attached: every surface shows it, with an alarm. Until it is brought back or
discarded, its backing store is not attached under another name and its pool is not removed. Hints work as printed."""

import os
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, write_pattern
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.waiting import eventually

POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'


@pytest.fixture
def absent(daemon: Daemon, folder: Path) -> Daemon:
    """Volume `old` with 2 MiB of dirty data, detached with --keep."""
    need("qemu-io")
    sparse(folder / "disk.img", 32 * MIB)
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    attach(daemon, folder)
    write_pattern(daemon.nbd("old"), 0x31, "4M", "2M")
    daemon("volume", "detach", "old", "--keep")
    return daemon


def attach(daemon: Daemon, folder: Path) -> None:
    backing = f"file:{folder}/disk.img"
    export = ["--export", daemon.nbd("old")]
    daemon("volume", "attach", "old", "--pool", "fast", "--backing", backing, *export, "--set", "idle_delay=off")


def is_shown_everywhere(daemon: Daemon) -> None:
    """Volume list and show, pool, alarms, status and metrics agree about 2 MiB of volume `old`."""
    volume = daemon.volumes()["old"]
    assert (volume["state"], volume["dirty_bytes"]) == ("absent", 2 * MIB), volume
    assert daemon.volume("old") == volume
    assert daemon.pool("fast")["absent"] == {"old": 2 * MIB}
    assert daemon.alarm("volume.absent", volume="old")
    assert daemon.api.metrics()['forebay_absent_dirty_bytes{pool="fast",volume="old"}'] == 2 * MIB
    status = daemon("status", ok=False).stdout
    assert "2.0 MiB" in status, status


def test_is_shown_until_it_is_back(absent: Daemon, folder: Path) -> None:
    is_shown_everywhere(absent)
    absent.stop()
    absent.logged("pool.closed", ["old"])
    absent.start()
    is_shown_everywhere(absent)

    absent.refused("volume.absent", "volume", "detach", "old", mentions=["2MiB"])
    absent("volume", "attach", "old", "--pool", "fast", "--backing", f"file:{folder}/disk.img")
    assert absent.alarm("volume.absent") is None
    absent("flush", "old")
    with (folder / "disk.img").open("rb") as disk:
        assert os.pread(disk.fileno(), 2 * MIB, 4 * MIB) == b"\x31" * 2 * MIB
    absent("volume", "detach", "old")
    absent.stop()


def test_store_and_pool_are_protected(absent: Daemon, folder: Path) -> None:
    (folder / "link.img").symlink_to("disk.img")
    for store in ("disk.img", "link.img"):
        attach_as_new = ["volume", "attach", "new", "--pool", "fast", "--backing", f"file:{folder}/{store}"]
        refusal = absent.refused("backing.dirty-elsewhere", *attach_as_new, mentions=["volume old", "2MiB"])
        assert f"forebay volume attach old --pool fast --backing file://{folder}/{store}" in refusal.text
        assert "forebay volume detach old --discard" in refusal.text
    for erase in ([], ["--erase"]):
        absent.refused("pool.dirty-data", "pool", "remove", "fast", *erase, mentions=["2MiB", "old"])

    # Another store is attached as before.
    sparse(folder / "other.img", 32 * MIB)
    absent("volume", "attach", "new", "--pool", "fast", "--backing", f"file:{folder}/other.img")
    absent("volume", "detach", "new")
    absent.stop()


def test_discarded_data_does_not_come_back(absent: Daemon, folder: Path) -> None:
    absent("volume", "detach", "old", "--discard")
    assert absent.alarm("volume.absent") is None
    assert absent.volumes() == {}
    backing = f"file:{folder}/disk.img"
    absent("volume", "attach", "new", "--pool", "fast", "--backing", backing, "--export", absent.nbd("new"))
    has_pattern(absent.nbd("new"), 0, "4M", "2M")
    absent("volume", "detach", "new")
    absent("pool", "remove", "fast")
    absent.stop()


def test_what_a_closed_pool_has_is_not_known(daemon: Daemon, folder: Path) -> None:
    """It is null for scripts, not 0."""
    need("qemu-io")
    sparse(folder / "disk.img", 32 * MIB)
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    attach(daemon, folder)
    write_pattern(daemon.nbd("old"), 0x31, "4M", "2M")
    daemon.kill()
    (folder / "flash.img").rename(folder / "away.img")
    daemon.start()
    for volume in (daemon.volume("old"), daemon.volumes()["old"]):
        assert volume["state"] == "absent", volume
        assert (volume["dirty_bytes"], volume["cached_bytes"]) == (None, None), volume
    assert "unknown" in daemon("volume", "show", "old").stdout
    daemon("volume", "list")
    (folder / "away.img").rename(folder / "flash.img")
    daemon.quiet("pool.failed")
    eventually(lambda: daemon.volume("old")["dirty_bytes"] == 2 * MIB, 10, "the volume is attached")
    daemon.stop()


def test_commands_name_the_way_back(absent: Daemon) -> None:
    """Each command of a volume that was detached with --keep is refused with the alarm's ways out."""
    commands = [["flush", "old"], ["get", "old"], ["set", "old", "mode=writethrough"], ["stats", "old"]]
    commands += [["rules", "list", "old"], ["volume", "resize", "old", "max"], ["advise", "old"]]
    for command in commands:
        refusal = absent.refused("volume.not-attached", *command, mentions=["2MiB", "fast"])
        assert "forebay volume attach old --pool fast" in refusal.text, (command, refusal.text)
    absent.refused("volume.unknown", "flush", "other")
    absent("volume", "detach", "old", "--discard")
    absent.stop()

"""Trouble around a Linux guest with a file system over vhost-user: the guest loses its power in the middle of writes;
the backing store hangs, also over a stop and a kill of the daemon; it fails; the cache device dies with a little that
only it has. The guest waits or sees an error, as with a disk. What was fsynced is there, and nothing reads wrong.

The store is a file of another forebay: it hangs while that one is stopped, and fails while that one's own store has no
bytes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, Devices, assert_same, checksum, cut_off, random_file
from harness.driven_guest import DrivenGuest, Job
from harness.waiting import eventually

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash/cache.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/slow/disk.img"
exports = ["vhost-user:{folder}/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""
MOUNT = "mkdir /run/mnt; mount -o noatime /dev/vda /run/mnt"
# The bytes that the file of a number has.
NUMBERED = 'numbered() { yes "file $1" | head -c 65536 || true; }'
# Writes files with numbers, and notes each one after its fsync; other writes go on beside it.
WRITES = f"""
{NUMBERED}
while :; do dd if=/dev/zero of=/run/mnt/noise bs=64k count=64 oflag=direct conv=notrunc status=none; done &
for ((number = 1; ; number++)); do
    numbered $number | dd of=/run/mnt/numbered-$number conv=fsync status=none
    echo $number >>/run/out/synced
done
"""
# The last MiB of the device belongs to no file.
FILE_SYSTEM_MIB = 159


class Trouble:
    """The daemon, its guest, and the store that makes trouble."""

    def __init__(self, daemon: Daemon, other: RunVolume, folder: Path) -> None:
        self.daemon = daemon
        self.other = other
        self.folder = folder
        self.cold = checksum(folder / "files/cold")
        self.content = {name: checksum(random_file(folder / name, 4 * MIB)) for name in ("one", "two")}
        self.guest: DrivenGuest

    def use(self, guest: DrivenGuest) -> None:
        """Boots again: with the file system, and files `one` and `two` in memory."""
        self.guest = guest
        for name in self.content:
            (guest.out / name).write_bytes((self.folder / name).read_bytes())
        guest.run(f"{MOUNT}; cp /run/out/one /run/out/two /run/; head -c 1M /run/two >/run/last")

    def hang(self) -> None:
        self.other.running.pause()

    def answer(self) -> None:
        self.other.running.resume()

    def put(self, name: str) -> Job:
        """Begins to write `one` or `two` into the file `hot`, with an fsync."""
        return self.guest.start(f"dd if=/run/{name} of=/run/mnt/hot bs=1M oflag=direct conv=notrunc,fsync status=none")

    def get(self, file: str) -> Job:
        """Begins to read a file from the device: its checksum."""
        return self.guest.start(f"dd if=/run/mnt/{file} bs=1M iflag=direct status=none | sha256sum | cut -d' ' -f1")

    def hot_is(self, name: str, when: str) -> None:
        assert self.get("hot").succeeds().strip() == self.content[name], f"hot is not '{name}' {when}"

    def cold_is_right(self, job: Job, when: str) -> None:
        assert job.succeeds().strip() == self.cold, f"wrong data in the file that is not cached, {when}"

    def waits_for_disk(self) -> None:
        """Waits until a `dd` of the guest waits for the disk."""
        self.guest.run("until grep -qs '(dd) D' /proc/[0-9]*/stat; do sleep 0.1; done", seconds=30)


@pytest.fixture
def trouble(
    daemon: Daemon, make_volume: Callable[..., RunVolume], devices: Devices, folder: Path, fuse: None
) -> Trouble:
    """A daemon with a volume whose store another forebay serves as a file: an ext4 with the file `cold` on it."""
    del fuse
    need("mkfs.ext4", "fsck.ext4", "debugfs", "fio", "qemu-system-x86_64")
    for name in ("files", "slow", "other"):
        (folder / name).mkdir()
    random_file(folder / "files/cold", 8 * MIB)
    other = make_volume("other", at=folder / "other")
    other.log = folder / "other.log"
    disk = other.make_backing(160 * MIB)
    fast = ["-E", "lazy_itable_init=0,lazy_journal_init=0"]
    run(["mkfs.ext4", "-q", "-d", folder / "files", *fast, disk, str(FILE_SYSTEM_MIB << 10)])
    devices.at_exit(lambda: run(["umount", "-l", folder / "slow"], ok=False))
    other.start("--io", "psync", "--mode", "passthrough", "--export", f"fuse:{folder}/slow/disk.img")
    devices.tmpfs("flash", "100M")
    daemon.configure(CONFIG.format(folder=folder))
    daemon.start()
    return Trouble(daemon, other, folder)


def power_is_cut(trouble: Trouble, make_guest: Callable[..., DrivenGuest]) -> None:
    """The guest loses its power in the middle of writes. What it has fsynced is there when it is up again."""
    guest = make_guest([trouble.folder / "db.sock"])
    daemon = trouble.daemon.pid
    guest.run(MOUNT)
    guest.start(WRITES)
    synced = guest.out / "synced"

    def numbers() -> list[str]:
        return [line.strip() for line in synced.read_text().splitlines(keepends=True) if line.endswith("\n")]

    guest.wait_for(lambda: synced.exists() and len(numbers()) >= 10, 100, "10 files are fsynced")
    guest.cut_power()
    written = numbers()

    trouble.use(make_guest([trouble.folder / "db.sock"]))
    assert trouble.daemon.running.is_running and trouble.daemon.pid == daemon, "the daemon did not outlive its guest"
    compare = "numbered $number | cmp - /run/mnt/numbered-$number"
    trouble.guest.run(f"{NUMBERED}; for number in {' '.join(written)}; do {compare}; done")


def store_hangs_over_stop(trouble: Trouble) -> None:
    """Hits and writes go on while the store hangs; a miss waits, also over a stop of the daemon."""
    trouble.put("one").succeeds()
    trouble.guest.run("sync -f /run/mnt")
    trouble.hang()
    reader = trouble.get("cold")
    trouble.waits_for_disk()
    trouble.put("two").succeeds()
    trouble.hot_is("two", "while the store hangs")
    assert reader.is_running, f"the miss does not wait: {reader.so_far()}"
    assert trouble.daemon.running.terminate() != 0, "what is not closed is told as closed"
    trouble.answer()
    trouble.daemon.start()
    trouble.cold_is_right(reader, "after a stop")
    trouble.hot_is("two", "though it was acknowledged before the stop")


def store_hangs_over_kill(trouble: Trouble) -> None:
    trouble.hang()
    trouble.put("one").succeeds()
    trouble.daemon.kill()
    writer = trouble.put("two")
    trouble.waits_for_disk()
    trouble.answer()
    trouble.daemon.start()
    writer.succeeds()
    trouble.hot_is("two", "after a write over a kill")
    assert trouble.guest.kernel_errors() == ""


def store_fails(trouble: Trouble) -> None:
    """A miss is an error, hits and writes are none; once the store is well, so is all of it."""
    daemon, guest, disk = trouble.daemon, trouble.guest, trouble.other.backing
    kept = trouble.folder / "kept.img"
    guest.run("sync -f /run/mnt")
    daemon("flush", "db")
    # The store fails from here on.
    trouble.hang()
    run(["cp", "--sparse=always", disk, kept])
    os.truncate(disk, 0)
    trouble.answer()
    trouble.put("one").succeeds()
    trouble.hot_is("one", "while the store fails")
    miss = guest.run("dmesg -C; dd if=/dev/vda of=/dev/null bs=1M skip=120 count=4 iflag=direct status=none", ok=False)
    assert miss.code != 0 and "Input/output error" in miss.stderr, f"a miss on a store that fails: {miss.describe()}"
    guest.run("dmesg -C")
    flush = daemon.forebay.start("flush", "db", name="flush")
    daemon.alarmed("destage.failed", volume="db")
    assert flush.is_running or flush.popen.returncode != 0, "what cannot be written back is written back"
    flush.kill()

    trouble.hang()
    run(["cp", "--sparse=never", kept, disk])
    trouble.answer()
    daemon("flush", "db")
    daemon.quiet("destage.failed", 60, volume="db")
    trouble.cold_is_right(trouble.get("cold"), "after the store is well again")
    assert guest.kernel_errors() == ""


def cache_dies(trouble: Trouble) -> None:
    """The cache device dies with one MiB that only it has. That MiB reads as an error until it is written again; one
    FLUSH fails; everything else is right."""
    daemon, guest = trouble.daemon, trouble.guest
    last = "bs=1M count=1 status=none"
    write_last = f"dd if=/run/last of=/dev/vda seek={FILE_SYSTEM_MIB} oflag=direct {last}"
    read_last = f"dd if=/dev/vda of=/run/read skip={FILE_SYSTEM_MIB} iflag=direct {last}"
    guest.run("sync -f /run/mnt")
    daemon("flush", "db")
    guest.run(write_last)
    cut_off(daemon.running, trouble.folder / "flash/cache.img", "1M")
    assert guest.run(read_last, ok=False).code != 0, "what only the dead cache had is read"
    # This FLUSH is the one that fails. One of the file system would end its writing.
    assert guest.run("sync /dev/vda", ok=False).code != 0, "no FLUSH tells that something is lost"
    assert daemon.alarmed("cache.failed", pool="fast")
    eventually(lambda: daemon.volume("db")["lost_bytes"] == MIB, 20, "one MiB is lost")
    trouble.hot_is("one", "without a cache")
    trouble.cold_is_right(trouble.get("cold"), "without a cache")
    guest.load("dead", "/run/mnt", seconds=2)
    # A write over what is lost heals it.
    guest.run(f"until {write_last}; do sleep 0.1; done; {read_last}; cmp /run/last /run/read", seconds=60)
    guest.run("if dmesg | grep 'EXT4-fs error'; then exit 1; fi; umount /run/mnt")
    guest.shut_down()
    assert daemon.alarm("cache.failed", pool="fast")
    assert daemon.volume("db")["lost_bytes"] == 0
    assert daemon.events("block.lost"), "no event tells of the loss"
    daemon.logged("cache.failed", ["db", MIB, daemon.state_dir / "failed-caches"])


@pytest.mark.heavy
@pytest.mark.xdist_group("guest")
@pytest.mark.limit(1500)
def test_guest_outlives_trouble(trouble: Trouble, make_guest: Callable[..., DrivenGuest], folder: Path) -> None:
    power_is_cut(trouble, make_guest)
    store_hangs_over_stop(trouble)
    store_hangs_over_kill(trouble)
    store_fails(trouble)
    cache_dies(trouble)

    disk = trouble.other.backing
    trouble.daemon("flush", "db")
    trouble.daemon.kill()
    run(["fsck.ext4", "-f", "-n", disk])
    run(["debugfs", "-R", f"dump /cold {folder}/cold", disk])
    assert_same(folder / "files/cold", folder / "cold", "in the store")

"""A pool of two devices and more changes the size of its last one and gets further ones, with dirty data. After
orderly stops and after kill -9 at any moment, the next start serves everything, and `check` and `salvage` read the
same cache; also if the header of a member is one step behind or ahead, as earlier builds left it."""

import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.oracle_run import Oracle
from harness.superblock import crc32c

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "32MiB" }}, {{ path = "{folder}/more.img", size = "{more}" }}]

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["{nbd}"]
idle_delay = "off"
"""
BLOCK = 4096


class Members:
    """Pool `fast` on flash.img and more.img, with dirty data; `devices` are its present members."""

    def __init__(self, daemon: Daemon, more: str = "32MiB") -> None:
        self.daemon = daemon
        self.folder = daemon.folder
        sparse(self.folder / "vol.img", 48 * MIB)
        daemon.configure(CONFIG.format(folder=self.folder, more=more, nbd=daemon.nbd()))
        self.devices = [self.folder / "flash.img", self.folder / "more.img"]
        self.third = self.folder / "third.img"
        daemon.start()
        self.oracle: Oracle = daemon.oracle()
        self.oracle.write(1)

    def change(self, *words: object) -> None:
        what, *rest = words
        self.daemon("pool", what, "fast", *rest)

    def check(self) -> None:
        self.daemon.forebay("check", *self.devices, "--state-dir", self.daemon.state_dir)

    def salvaged(self, when: str) -> None:
        """What is salvaged onto a copy of the backing store is what was acknowledged."""
        copy = self.folder / "copy.img"
        shutil.copyfile(self.folder / "vol.img", copy)
        onto = ["--volume", "vol", "--onto", f"file:{copy}", "--state-dir", self.daemon.state_dir]
        self.daemon.forebay("salvage", *self.devices, *onto)
        # The state is as before: what may be there is only known when the daemon serves again.
        kept = self.oracle.state.read_bytes()
        self.oracle.verify_file(copy, f"after salvage {when}")
        self.oracle.state.write_bytes(kept)

    def mended(self) -> list[str]:
        """What a start has to say about a member: that its header is brought up to date. Else it names none."""
        texts = [message.text for message in self.daemon.messages()]
        return [text for text in texts if any(str(device) in text for device in self.devices)]

    def again(self, when: str) -> None:
        """A start; every header was what the cache uses."""
        self.check()
        self.salvaged(when)
        self.daemon.start()
        assert not self.mended(), f"a header was not what the cache uses {when}"
        self.oracle.verify(when)


def length(path: Path, mib: int) -> None:
    assert path.stat().st_size == mib * MIB, f"{path} has {path.stat().st_size} bytes, not {mib} MiB"


def header(path: Path, *blocks: int) -> int:
    """Sets what the copies of a member header say of its length (the last value for the rest); what the first one
    said before."""
    with path.open("r+b") as file:
        for copy, at in enumerate((0, 16 * BLOCK)):
            block = bytearray(os.pread(file.fileno(), BLOCK, at))
            assert block[:8] == b"FBAYMEMB", "no member header"
            if copy == 0:
                (before,) = struct.unpack_from("<Q", block, 48)
            if blocks:
                struct.pack_into("<Q", block, 48, blocks[min(copy, len(blocks) - 1)])
                struct.pack_into("<I", block, BLOCK - 4, 0)
                struct.pack_into("<I", block, BLOCK - 4, crc32c(bytes(block)))
                os.pwrite(file.fileno(), block, at)
    return before


@pytest.fixture
def members(daemon: Daemon) -> Members:
    return Members(daemon)


def further_device(members: Members, end: Callable[[], None], how: str) -> None:
    """A third device comes, is the one that changes its size, and is given up."""
    daemon, (_, more), third = members.daemon, members.devices, members.third
    members.change("grow", "--device", f"{third}:16MiB", "--overwrite")
    members.change("grow", "--size", "20MiB")
    members.devices.append(third)
    end()
    members.again(f"after a further device and {how}")
    assert (header(more), header(third)) == (35 * 256, 19 * 256)
    shrink = ["pool", "shrink", "fast"]
    daemon.refused("pool.replacement", *shrink, "--device", more, code=2, mentions=[more])
    daemon.refused("pool.size", *shrink, "--size", "1MiB", code=2, mentions=["forebay pool shrink fast --device"])
    daemon.refused("pool.resize-failed", *shrink, "--size", "1028KiB", mentions=[])
    daemon.refused("pool.size", *shrink, "--size", "20MiB", code=2, mentions=["20MiB", third])
    members.change("shrink", "--device", third)
    members.devices.remove(third)
    members.change("grow", "--size", "37500KiB")  # not in whole segments
    members.change("shrink", "--size", "32MiB")
    end()
    third.unlink()
    members.again(f"after the last device was given up and {how}")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_start_after_each_change(members: Members, how: str) -> None:
    """Shorter, longer, a further device, and without it."""
    daemon, more = members.daemon, members.devices[1]
    end = daemon.stop if how == "stop" else daemon.kill
    members.change("shrink", "--size", "24MiB")
    length(more, 24)
    assert daemon.config()["pool"]["fast"]["devices"][1] == {"path": str(more), "size": "24MiB"}
    daemon("reload")
    length(more, 24)
    end()
    members.again(f"after a shrink and {how}")
    members.change("grow", "--size", "40MiB")
    members.change("shrink", "--size", "36MiB")
    end()
    members.again(f"after a grow, a shrink and {how}")
    length(more, 36)
    further_device(members, end, how)
    daemon.stop()


@pytest.mark.parametrize("blocks", [(9999999,), (2048, 3840)], ids=["stale", "copies-differ"])
def test_stale_headers_are_mended(members: Members, blocks: tuple[int, ...]) -> None:
    """As an earlier build left them, and after a change that was cut off between their copies."""
    daemon, third = members.daemon, members.third
    members.change("grow", "--device", f"{third}:16MiB")
    members.devices.append(third)
    daemon.stop()
    header(third, *blocks)
    header(members.devices[1], 5000)
    members.check()
    members.salvaged("with stale headers")
    daemon.start()
    daemon.logged("pool.note", [third, "3840 blocks"])
    assert members.mended()
    members.oracle.verify("with stale headers")
    daemon.stop()
    members.again("after the headers were mended")
    daemon.stop()


def test_cut_device_is_refused_by_name(members: Members) -> None:
    """And the cache opens with its length restored."""
    daemon = members.daemon
    members.change("grow", "--device", f"{members.third}:16MiB")
    members.devices.append(members.third)
    daemon.stop()
    for device in members.devices:
        whole = device.stat().st_size
        kept = shutil.copyfile(device, members.folder / "kept.img")
        os.truncate(device, whole - MIB)
        short = [device, whole - MIB, whole]
        daemon.forebay.refused(
            "cache.truncated", "check", *members.devices, "--state-dir", daemon.state_dir, mentions=short
        )
        daemon.start()
        daemon.logged("cache.truncated", short)
        daemon.stop()
        shutil.copyfile(kept, device)
    daemon.start()
    members.oracle.verify("with the full length of all devices")
    daemon.stop()


@pytest.mark.heavy
@pytest.mark.parametrize("moment", [5, 40])
def test_kill_in_the_middle_of_changes(members: Members, moment: int) -> None:
    """Under writes, some milliseconds after a change was asked for.

    Where processors are very busy the start may refuse the volume, since its store "was written after the last
    write": a write under way at the kill may get its time later than SLACK_NS of forebay-pool/src/witness.rs
    allows."""
    daemon = members.daemon
    for words in (["shrink", "12MiB"], ["grow", "24MiB"], ["grow", "32MiB"]):
        what, size = words
        load = members.oracle.load(seed=moment)
        command = daemon.forebay.start("pool", what, "fast", "--size", size, name="change")
        time.sleep(moment / 1000)
        daemon.kill()
        command.wait()
        load.succeeds()
        members.check()
        members.salvaged(f"after kill -9 at {moment} ms into {what} {size}")
        daemon.start()
        members.oracle.verify(f"after kill -9 at {moment} ms into {what} {size}")
    daemon.stop()
    members.again("at the end")
    daemon.stop()

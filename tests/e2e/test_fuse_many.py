"""Many FUSE files in one pool at the defaults: each is read and written, also while one of them and NBD clients take
all memory that they can get. A file for which there is no memory is refused, by the check and by the attach, with
what would be enough."""

import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness.crowd import Crowd, all_answered
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.mounts import abort_fuse

POOL = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
buffer_memory = "{memory}"
"""
VOLUME = """
[volume.v{number}]
pool = "fast"
backing = "file:{folder}/disk{number}"
exports = ["fuse:{folder}/m{number}/v{number}", "nbd+unix:///v{number}?socket={folder}/nbd.sock"]
"""
# The least memory there can be, and how many files it is enough for.
LEAST, FILES = "192MiB", 31


@pytest.fixture
def place(fuse: None, devices: Devices, folder: Path) -> Path:
    del fuse
    devices.at_exit(lambda: abort_fuse(folder))
    for number in range(1, FILES + 2):
        sparse(folder / f"disk{number}", 64 * MIB)
    return folder


def config(folder: Path, memory: str, count: int) -> str:
    volumes = [VOLUME.format(folder=folder, number=number) for number in range(1, count + 1)]
    return POOL.format(folder=folder, memory=memory) + "".join(volumes)


def files(folder: Path, numbers: Iterable[int]) -> list[Path]:
    return [folder / f"m{number}/v{number}" for number in numbers]


@pytest.mark.heavy
def test_every_file_is_answered(daemon: Daemon, place: Path) -> None:
    daemon.configure(config(place, "512MiB", 20))
    daemon.start()
    all_answered(place, files(place, range(1, 21)))
    daemon.stop()


@pytest.mark.heavy
def test_crowd_on_one_file_starves_no_other(daemon: Daemon, place: Path) -> None:
    daemon.configure(config(place, LEAST, FILES))
    daemon.start()
    crowd = Crowd(place, place / "nbd.sock", "v2", place / "m1/v1")
    all_answered(place, files(place, range(3, FILES + 1)))
    time.sleep(2)  # more of a crowd
    all_answered(place, files(place, range(3, FILES + 1)))
    crowd.finish()
    daemon.stop()


def test_file_without_memory_is_refused(daemon: Daemon, place: Path) -> None:
    daemon.configure(config(place, LEAST, FILES))
    daemon.start()
    last = FILES + 1
    export = ["--export", f"fuse:{place}/m{last}/v{last}"]
    attach = ["volume", "attach", f"v{last}", "--pool", "fast", "--backing", f"file:{place}/disk{last}", *export]
    daemon.refused("volume.definition", *attach, mentions=["buffer_memory"], code=(1, 2, 3))
    assert not (place / f"m{last}").exists(), "the refused file left its folder behind"
    assert len(daemon.volumes()) == FILES
    all_answered(place, files(place, [FILES]))
    daemon.stop()

    # The check refuses the same before anything is started, and its advice is enough.
    daemon.configure(config(place, LEAST, last))
    daemon.refused("config.conflict", "config", "check", daemon.config_path, mentions=["buffer_memory"])
    findings = daemon.json("config", "check", daemon.config_path, ok=False)["findings"]
    sizes = [int(size) for one in findings for size in re.findall(r"(\d+)MiB", f"{one['message']} {one['help']}")]
    assert max(sizes) > 192, findings
    daemon.configure(config(place, f"{max(sizes)}MiB", last))
    daemon("config", "check", daemon.config_path)

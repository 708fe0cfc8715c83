"""Signals as shells, terminals and service managers send them: early, twice, and when a terminal is closed."""

import signal
from pathlib import Path

from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, sparse

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.vol]
pool = "fast"
backing = "file:{backing}"
exports = ["fuse:{folder}/mnt/vol"]
"""


def test_closed_terminal_stops_run(volume: RunVolume) -> None:
    """`forebay run` has no file to read again: SIGHUP is an orderly stop."""
    volume.make_backing(64 * MIB)
    volume.start()
    volume.running.signal(signal.SIGHUP)
    assert volume.running.wait(60) == 0, volume.running.tail()


def test_repeated_stop_is_one_stop(daemon: Daemon, fuse: None) -> None:
    """Ctrl-C pressed several times, or a service manager beside a shell: nothing stays mounted."""
    del fuse
    (daemon.folder / "mnt").mkdir()
    backing = sparse(daemon.folder / "disk.img", 64 * MIB)
    daemon.configure(CONFIG.format(folder=daemon.folder, backing=backing))
    daemon.start()
    assert (daemon.folder / "mnt/vol").stat().st_size == 64 * MIB
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        daemon.running.signal(name)
    assert daemon.running.wait(60) == 0, daemon.running.tail()
    mounts = Path("/proc/self/mounts").read_text()
    assert str(daemon.folder) not in mounts, mounts

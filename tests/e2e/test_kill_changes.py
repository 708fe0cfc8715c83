"""kill -9 in the middle of changes of a pool's size. The next start serves the volume, whatever of the change is on
the devices, in the configuration or in neither, and the change can be asked for again."""

import os
import time
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.pools import Filled

CONFIG = """[pool.fast]
devices = [{devices}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{nbd}"]
idle_delay = "off"
"""


def configure(daemon: Daemon, devices: str) -> None:
    daemon.configure(CONFIG.format(devices=devices, folder=daemon.folder, nbd=daemon.nbd("db")))


@pytest.fixture
def filled(daemon: Daemon, folder: Path) -> Filled:
    """Pool `fast` on flash.img, with dirty data of volume `db`."""
    sparse(folder / "db.img", 64 * MIB)
    configure(daemon, f'{{ path = "{folder}/flash.img", size = "32MiB" }}')
    daemon.start()
    filled = Filled(daemon, "db", blocks=800, step=2)
    filled.write()
    return filled


def killed_in(daemon: Daemon, filled: Filled, milliseconds: int, *command: object) -> None:
    """kill -9 so long after a command was given, and a start."""
    asked = daemon.forebay.start(*command, name="killed")
    time.sleep(milliseconds / 1000)
    daemon.kill()
    asked.wait()
    daemon.start()
    filled.verify(f"after kill -9 at {milliseconds} ms into {command}")


def has_device(daemon: Daemon, device: Path) -> bool:
    return str(device) in [entry["path"] for entry in daemon.pool("fast")["devices"]]


@pytest.mark.parametrize("milliseconds", [5, 20, 40, 80, 160])
def test_kill_while_it_grows_and_shrinks(daemon: Daemon, filled: Filled, folder: Path, milliseconds: int) -> None:
    more = folder / "more.img"
    grow = ["pool", "grow", "fast", "--device", f"{more}:32MiB"]
    shrink = ["pool", "shrink", "fast", "--device", more]
    killed_in(daemon, filled, milliseconds, *grow)
    if str(more) not in daemon.config_path.read_text() or not has_device(daemon, more):
        daemon(*grow, "--overwrite")
    assert has_device(daemon, more)
    filled.verify("after it has grown")
    killed_in(daemon, filled, milliseconds, *shrink)
    if has_device(daemon, more):
        daemon(*shrink)
    daemon.stop()
    # The pool lies on the one device that is left.
    more.unlink(missing_ok=True)
    configure(daemon, f'{{ path = "{folder}/flash.img", size = "32MiB" }}')
    daemon.start()
    filled.verify("after it has shrunk")
    daemon.stop()


def test_file_with_another_length(daemon: Daemon, filled: Filled, folder: Path) -> None:
    """A cache file is longer than the configuration says: it is used as it is, and can grow and shrink."""
    daemon.stop()
    os.truncate(folder / "flash.img", 48 * MIB)
    daemon.start()
    filled.verify("with a file that was made longer")
    daemon.logged("pool.note", ["48MiB", "32MiB"])
    daemon("pool", "grow", "fast", "--size", "max")
    killed_in(daemon, filled, 30, "pool", "shrink", "fast", "--size", "24MiB")
    daemon.stop()


def test_device_that_cannot_join(daemon: Daemon, filled: Filled, folder: Path) -> None:
    """The cache does not lie on it yet: the pool is opened without it, and the hint says how it joins."""
    daemon.stop()
    blank = sparse(folder / "blank.img", 32 * MIB)
    configure(daemon, f'"{folder}/flash.img", "{blank}"')
    daemon.start()
    filled.verify("with a device that cannot join")
    daemon.logged("pool.device-unknown", [blank, "forebay pool grow fast --device"])
    grow = ["pool", "grow", "fast", "--device", blank]
    daemon.refused("cache.zeroed", *grow, mentions=["--overwrite"])
    daemon(*grow, "--overwrite")
    filled.verify("after it has joined")
    daemon.restart()
    filled.verify("on two devices")
    assert has_device(daemon, blank)
    daemon.stop()

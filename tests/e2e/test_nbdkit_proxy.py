"""Another NBD implementation in between: nbdkit as a client of the volume and a server to nbdcopy."""

from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import RunVolume
from harness.devices import MIB, assert_same, random_file
from harness.process import Process
from harness.waiting import eventually


def test_image_is_the_same_through_nbdkit(volume: RunVolume, folder: Path) -> None:
    need("nbdkit", "nbdcopy")
    if run(["nbdkit", "nbd", "--version"], ok=False).code != 0:
        pytest.skip("nbdkit has no nbd plugin")
    volume.make_backing(64 * MIB)
    image = random_file(folder / "in", 64 * MIB)
    volume.start()
    socket = folder / "proxy.sock"
    command = ["nbdkit", "--foreground", "--unix", str(socket), "nbd", f"socket={volume.socket}", "export=vol"]
    nbdkit = Process(command, folder / "nbdkit.err")
    eventually(socket.is_socket, 20, "nbdkit listens")
    proxy = f"nbd+unix:///?socket={socket}"
    run(["nbdcopy", "--flush", image, proxy])
    run(["nbdcopy", proxy, folder / "out"])
    assert_same(image, folder / "out", "through nbdkit")
    run(["nbdcopy", volume.uri, folder / "direct"])
    assert_same(image, folder / "direct", "past nbdkit")
    nbdkit.terminate()
    volume.stop()

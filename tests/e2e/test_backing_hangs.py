"""A backing store that does not answer for a while: what is cached is still served, and writes that the cache takes are
acknowledged. When it answers again everything goes on."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB
from harness.hanging import HangingFiles, hanging_files
from harness.nbd import FLUSH, READ, WRITE, Client

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{store}"
exports = ["{export}"]
idle_delay = "off"
"""
BLOCK = bytes([7]) * 4096
CROWD, EACH = 4, 500


@pytest.fixture
def hanging(folder: Path, fuse: None, make_daemon: Callable[..., Daemon]) -> Iterator[HangingFiles]:
    del fuse, make_daemon
    with hanging_files(folder, "slow") as files:
        yield files


def test_hung_store_does_not_stop_the_cache(daemon: Daemon, folder: Path, hanging: HangingFiles) -> None:
    daemon.configure(CONFIG.format(folder=folder, store=hanging.path("slow"), export=daemon.nbd("db")))
    daemon.start()
    with contextlib.ExitStack() as clients:
        client, second, *crowd = [
            clients.enter_context(Client(str(daemon.socket("db")), "db", timeout=60)) for _ in range(2 + CROWD)
        ]
        for at in range(0, MIB, 4096):
            assert client.call(WRITE, at, 4096, BLOCK)[0] == 0
        assert client.call(FLUSH)[0] == 0
        hanging.pause()
        # A miss: it waits for as long as the store does.
        second.request(READ, 9, 32 * MIB, 4096)
        # And more of them than operations may be in the kernel at once: the cache must not wait behind them.
        for number, one in enumerate(crowd):
            for cookie in range(EACH):
                one.request(READ, cookie, 4 * MIB + (number * EACH + cookie) * 16384, 4096)
        time.sleep(0.5)  # they may be on their way still: the test holds then, too
        for turn in range(500):
            at = turn % 256 * 4096
            assert client.call(READ, at, 4096) == (0, BLOCK), f"a hit at {at}"
            assert client.call(WRITE, at, 4096, BLOCK)[0] == 0
        assert client.call(FLUSH)[0] == 0
        assert hanging.process.state() == "T", "the store answered meanwhile"
        hanging.resume()
        assert second.reply() == (0, 9)
        assert second.receive(4096) == bytes(4096)
        for one in crowd:
            for _ in range(EACH):
                assert one.reply()[0] == 0
                assert one.receive(4096) == bytes(4096)
    daemon("flush", "db")
    daemon.stop()

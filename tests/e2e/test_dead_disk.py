"""The state of a volume tells of a disk that is dead or fails: everywhere the same, until it works again."""

import os
from pathlib import Path

from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, random_file, sparse
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{store}"
exports = ["{export}"]
"""


def serve(daemon: Daemon, folder: Path, store: Path) -> None:
    daemon.configure(CONFIG.format(folder=folder, store=store, export=daemon.nbd("db")))
    daemon.start()
    assert is_told(daemon, "ok")


def is_told(daemon: Daemon, state: str) -> bool:
    """By the API, the metrics and the list for people."""
    volume = daemon.volume("db")
    assert volume["state"] == "serving"
    assert (volume["backing_why"] is None) == (volume["backing_state"] == "ok")
    metrics = daemon.api.request("GET", "/metrics")[1].decode()
    listed = " ".join(daemon("volume", "list").stdout.split())  # in whatever lines
    return (
        volume["backing_state"] == state
        and f'forebay_backing_state{{pool="fast",volume="db",state="{state}"}} 1' in metrics
        and (f"backing {state}" in listed) == (state != "ok")
    )


def read(daemon: Daemon, at: int) -> int:
    with Client(str(daemon.socket("db")), "db") as client:
        return int(client.call(READ, at, 4096)[0])


def test_store_that_takes_no_writes(daemon: Daemon, devices: Devices, folder: Path) -> None:
    small = devices.tmpfs("small", "4M")
    store = sparse(small / "disk.img", 64 * MIB)
    serve(daemon, folder, store)
    with Client(str(daemon.socket("db")), "db") as client:
        for at in range(0, 16 * MIB, MIB):
            assert client.call(WRITE, at, MIB, b"\x5a" * MIB)[0] == 0
        assert client.call(FLUSH)[0] == 0
    flush = daemon.forebay.start("flush", "db", name="flush")
    eventually(lambda: is_told(daemon, "failing"), 30, "it is told that the store fails")
    assert str(store) in daemon.volume("db")["backing_why"]
    # That it can be read does not make it better.
    assert read(daemon, 32 * MIB) == 0
    assert is_told(daemon, "failing")
    flush.kill()
    run(["mount", "-o", "remount,size=96M", str(small)])
    eventually(lambda: daemon("flush", "db", ok=False).code == 0, 60, "it is written back")
    eventually(lambda: is_told(daemon, "ok"), 30, "it works again")
    daemon.stop()


def test_store_that_is_gone(daemon: Daemon, folder: Path) -> None:
    """Nothing is dirty, and nobody wants anything of it."""
    store = random_file(folder / "disk.img", 64 * MIB)
    before = store.read_bytes()
    serve(daemon, folder, store)
    os.truncate(store, 0)
    eventually(lambda: is_told(daemon, "short"), 30, "it is told that the store is short")
    assert read(daemon, 0) != 0
    with store.open("r+b") as file:
        file.write(before)
    eventually(lambda: daemon.volume("db")["backing_state"] == "failing", 30, "it has its length")
    assert read(daemon, MIB) == 0
    eventually(lambda: is_told(daemon, "ok"), 30, "a read has succeeded")
    daemon.stop()

"""Control calls that have to do with something that does not answer (a backing store, a cache device, a name server)
fail in time, say what does not answer, and hold up no other volume of the pool."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import messages
from harness.clients import is_served, need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.hanging import HangingFiles, hanging_files
from harness.messages import Message
from harness.waiting import eventually

POOL = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.good]
pool = "fast"
backing = "file:{folder}/good.img"
exports = ["{good}"]
"""
HUNG = """
[volume.hung]
pool = "fast"
backing = "file:{store}"
exports = ["{hung}"]
"""
SECOND = """
[pool.second]
devices = [{{ path = "{store}" }}]
"""
# In a mount namespace of its own. What other tests have mounted would stay mounted in there, and so be in use, after
# they have unmounted it.
OWN_MOUNTS = """#!/bin/sh
awk '$2 ~ "/forebay-e2e[.][^/]*/" && index($2, "{folder}/") != 1 {{ print $2 }}' /proc/self/mounts |
    tac | xargs -r -n1 umount -l 2>/dev/null
mount --bind "{folder}/resolv.conf" /etc/resolv.conf && exec "$@"
"""


@pytest.fixture
def hanging(folder: Path, fuse: None, make_daemon: Callable[..., Daemon]) -> Iterator[HangingFiles]:
    del fuse, make_daemon
    with hanging_files(folder, "slow", "other") as files:
        yield files


@pytest.fixture
def deaf_name_server(daemon: Daemon, folder: Path, root: None) -> Iterator[None]:
    """A name server that does not answer, which only the daemon asks: the port is bound, and not read."""
    del root
    need("unshare")
    numbers = random.Random(os.getpid())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        for _ in range(100):
            address = f"127.{numbers.randint(1, 254)}.{numbers.randint(1, 254)}.{numbers.randint(1, 254)}"
            with contextlib.suppress(OSError):
                server.bind((address, 53))
                break
        else:
            pytest.skip("no name server can be made here")
        (folder / "resolv.conf").write_text(f"nameserver {address}\n")
        script = folder / "own-mounts"
        script.write_text(OWN_MOUNTS.format(folder=folder))
        script.chmod(0o755)
        daemon.wrapper = ["unshare", "-m", str(script)]
        if run([*daemon.wrapper, "true"], ok=False).code != 0:
            pytest.skip("this machine has no /etc/resolv.conf, or no mounts")
        yield


def configure(daemon: Daemon, folder: Path, more: str = "") -> None:
    need("nbdinfo")
    sparse(folder / "good.img", 64 * MIB)
    daemon.configure(POOL.format(folder=folder, good=daemon.nbd("good")) + more)


def others_go_on(daemon: Daemon) -> None:
    """Control calls and clients of the other volume."""
    daemon("volume", "show", "good")
    daemon("stats", "good")
    daemon("flush", "good")
    is_served(daemon.nbd("good"))


def fails_in_time(daemon: Daemon, *command: object) -> list[Message]:
    """Others go on while it is under way; it ends, although what it waits for never answers."""
    process = daemon.forebay.start(*command, name="slow")
    time.sleep(0.5)  # that it is under way, not only begun: the test holds in both cases
    others_go_on(daemon)
    assert process.is_running, f"{command} did not wait: {process.tail()}"
    assert process.wait(90) == 1, process.tail()
    return messages.parse(process.stderr())


@pytest.mark.usefixtures("deaf_name_server")
def test_name_that_is_not_resolved(daemon: Daemon, folder: Path) -> None:
    """Of an export."""
    configure(daemon, folder)
    third = sparse(folder / "third.img", 64 * MIB)
    daemon.start()
    attach = ["volume", "attach", "third", "--backing", f"file:{third}"]
    found = fails_in_time(daemon, *attach, "--export", "nbd://slow.test:10999/third")
    messages.check("export.failed", found, ["slow.test"], "attach")
    assert "third" not in daemon.config()["volume"], "what failed is in the configuration"
    daemon(*attach)
    daemon("volume", "detach", "third")
    daemon.stop()


@pytest.mark.limit(400)
def test_calls_to_hung_devices_fail(daemon: Daemon, folder: Path, hanging: HangingFiles) -> None:
    """The size of a store that hangs, and cache devices that hang."""
    store, cache = hanging.path("slow"), hanging.path("other")
    configure(daemon, folder, HUNG.format(store=store, hung=daemon.nbd("hung")))
    daemon.start()
    hanging.pause()
    hanging.forget_size()
    found = fails_in_time(daemon, "volume", "resize", "hung", "32MiB")
    messages.check("backing.not-answering", found, [store, "hung"], "resize")
    daemon.refused("backing.not-answering", "volume", "resize", "hung", "max", mentions=[store, "hung"])
    found = fails_in_time(daemon, "pool", "create", "second", "--device", cache, "--overwrite")
    messages.check("cache.not-answering", found, [cache], "create")
    daemon.refused("cache.not-answering", "pool", "grow", "fast", "--device", cache, "--overwrite", mentions=[cache])
    others_go_on(daemon)
    assert str(cache) not in daemon.config_path.read_text(), "what failed is in the configuration"
    hanging.resume()
    daemon("volume", "resize", "hung", "32MiB")
    assert daemon.volume("hung")["size_bytes"] == 32 * MIB
    daemon("volume", "detach", "hung")
    daemon.stop()


def test_start_does_not_wait_for_hung_cache(daemon: Daemon, folder: Path, hanging: HangingFiles) -> None:
    """The others are served, and it is opened once it answers."""
    cache = hanging.path("other")
    configure(daemon, folder, SECOND.format(store=cache))
    daemon.start()
    daemon("pool", "open", "second", "--overwrite")
    daemon.stop()
    hanging.pause()
    hanging.forget_size()
    daemon.start(wait=False)
    daemon.wait_until_serving(100)
    is_served(daemon.nbd("good"))
    alarm = daemon.alarm("pool.failed", pool="second")
    assert alarm, daemon.alarms()
    assert str(cache) in alarm["message"], alarm
    hanging.resume()
    eventually(lambda: not daemon.pool("second")["not_open"], 60, "the pool is opened")
    daemon("pool", "show", "second")
    daemon.quiet("pool.failed")
    daemon.stop()

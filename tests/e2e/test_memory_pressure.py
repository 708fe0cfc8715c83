"""Clients that ask for more than the memory of the pool and read nothing for a while: no data without its header, no
write of the engine that fails for want of memory, and everything is answered in the end. More clients than may be are
refused."""

import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import BINARY, Forebay, run
from harness.daemon import Daemon
from harness.devices import MIB, random_file, sparse
from harness.nbd import READ, Client
from harness.pressure import start_pressure
from harness.proc import memory
from harness.slow_clients import greedy_clients, is_cut_off, only_so_many_are_let_in, polite_client_is_served
from harness.waiting import eventually

KIB = 1 << 10
BUFFERS = 192 * MIB
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
buffer_memory = "192MiB"

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["nbd+unix:///vol?socket={folder}/vol.sock"]
connections_max = 300

[pool.few]
devices = [{{ path = "{folder}/flash2.img", size = "64MiB" }}]
buffer_memory = "192MiB"
pool_connections_max = 400

[volume.small]
pool = "few"
backing = "file:{folder}/small.img"
exports = ["nbd+unix:///small?socket={folder}/small.sock"]
"""


def configure(daemon: Daemon, more: str = "") -> Daemon:
    sparse(daemon.folder / "vol.img", 96 * MIB)
    sparse(daemon.folder / "small.img", MIB)
    daemon.configure(CONFIG.format(folder=daemon.folder), daemon=more)
    return daemon


class Memory:
    """What the daemon takes, compared with what it took before there was a client."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.idle = memory(daemon.pid, "VmHWM")

    def is_bounded(self, connections: int = 0) -> None:
        """The memory for requests of all pools; for each connection its tables and what the allocator keeps."""
        bound = self.idle + 2 * BUFFERS + connections * 64 * KIB + 32 * MIB
        most = memory(self.daemon.pid, "VmHWM")
        assert most < bound, f"clients made the daemon take {most} bytes of memory, more than {bound}"
        for volume in self.daemon.api.get("/v1/stats")["volumes"].values():
            assert volume["failed_requests"] == 0
            errors = [name for name, value in volume.items() if name.endswith(("_errors", "_failures")) and value]
            assert not errors, f"clients took the memory that the engine needs: {errors}"
        assert not self.daemon.alarms()


@pytest.mark.heavy
def test_replies_beyond_the_memory(daemon: Daemon, folder: Path) -> None:
    need("nbdcopy")
    configure(daemon).start()
    used = Memory(daemon)
    image = random_file(folder / "in", 96 * MIB)
    run(["nbdcopy", "--connections=4", "--flush", image, daemon.nbd()])
    for clients in (1, 4):
        start_pressure(folder, daemon.socket(), None, image, clients=clients, requests=150).succeeds(60)
    used.is_bounded()
    daemon.stop()


@pytest.mark.heavy
def test_clients_that_never_read(daemon: Daemon) -> None:
    """Others are served beside them, and one after the other is disconnected as long as others wait for memory."""
    configure(daemon).start()
    used = Memory(daemon)
    with greedy_clients(daemon.socket(), "vol", 8) as greedy:

        def one_is_cut_off() -> bool:
            polite_client_is_served(daemon.socket(), "vol")
            return any(is_cut_off(client) for client in greedy)

        eventually(one_is_cut_off, 60, "a client that takes no answers is disconnected")
        for _ in range(20):
            polite_client_is_served(daemon.socket(), "vol")
    daemon.logged("client.refused", ["uid "])
    assert daemon.events("client.refused")
    used.is_bounded()
    daemon.stop()


def test_more_clients_than_may_be(daemon: Daemon) -> None:
    """The limit of a volume answers with a refusal, that of a pool closes. Both are in the log."""
    configure(daemon).start()
    used = Memory(daemon)
    only_so_many_are_let_in(daemon.socket(), "vol", 1000, 300)
    # Few of many refusals are in the log: the newest of each two seconds.
    for _ in range(20):
        if any('"vol"' in event["message"] and "300" in event["message"] for event in daemon.events("client.refused")):
            break
        only_so_many_are_let_in(daemon.socket(), "vol", 310, 300)
    daemon.logged("client.refused", ["vol", "300", "connections_max"])
    only_so_many_are_let_in(daemon.socket("small"), "small", 600, 400)
    daemon.logged("client.refused", ["400", "pool_connections_max"])
    used.is_bounded(800)
    daemon.stop()


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))


def test_clients_wait_for_descriptors(daemon: Daemon) -> None:
    """With 80 descriptors not everybody is accepted; clients wait, and are served when others go."""
    configure(daemon).start(prepare=few_descriptors)
    clients: list[socket.socket] = []
    for _ in range(100):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(5)
        stream.connect(str(daemon.socket()))
        clients.append(stream)
        try:
            if not stream.recv(18):
                break
        except TimeoutError:
            break
    else:
        raise AssertionError("100 clients with 80 descriptors: the test tests nothing")
    assert len(clients) > 10, len(clients)
    for stream in clients:
        stream.close()
    last = Client(str(daemon.socket()), "vol", timeout=60)
    assert last.call(READ, 0, 4096)[0] == 0
    last.close()
    daemon.logged("client.refused", ["os error 24"])
    eventually(lambda: daemon.events("client.refused"), 20, "an event that clients wait")
    daemon.stop()


def test_memory_is_locked(daemon: Daemon, root: None) -> None:
    del root
    configure(daemon, 'lock_memory = "yes"\n').start()
    assert memory(daemon.pid, "VmLck") > 10000 * KIB
    daemon.stop()


def test_memory_that_may_not_be_locked(make_daemon: Callable[..., Daemon], folder: Path, root: None) -> None:
    """The start is refused with the limit that is in the way."""
    del root
    need("setpriv", "prlimit")
    daemon = configure(make_daemon(), 'lock_memory = "yes"\n')
    binary = Path(shutil.copy(BINARY, folder / "forebay"))
    binary.chmod(0o755)
    folder.chmod(0o755)
    daemon.forebay = Forebay(folder, admin=daemon.admin, binary=binary)
    user = ["setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups", "--inh-caps=-all"]
    daemon.wrapper = ["prlimit", "--memlock=1048576", *user]
    daemon.start(wait=False)
    assert daemon.running.wait(60) == 1, daemon.running.tail()
    daemon.logged("daemon.memory-lock", ["1048576", "RLIMIT_MEMLOCK"])

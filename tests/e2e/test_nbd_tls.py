"""NBD over TLS with real clients: mutual certificates, everything else refused, STARTTLS as an attacker would try it,
certificates exchanged while clients are connected, and what fio verifies."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from harness import starttls
from harness.clients import fio_nbd, need
from harness.command import Result, run
from harness.daemon import Daemon
from harness.devices import MIB, assert_same, random_file, sparse
from harness.nbd import REPLY_MAGIC, WRITE
from harness.pressure import connect, header, read, start_pressure
from harness.proc import descriptors, memory
from harness.process import Process
from harness.tls import Pki, assert_no_secrets, keys
from harness.waiting import eventually

SIZE = 64 * MIB
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
buffer_memory = "192MiB"

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["nbds://127.0.0.1:{port}/vol?tls=lan", "nbds+unix:///vol?socket={folder}/tls.sock&tls=lan"]
"""


class World:
    """A volume with TLS; `alice` may use it, `mallory` has a certificate of another authority, `nobody` has none."""

    def __init__(self, daemon: Daemon, port: int) -> None:
        self.daemon, self.folder, self.port = daemon, daemon.folder, port
        self.pki = Pki(self.folder / "pki")
        self.pki.authority()
        self.pki.authority("other")
        self.pki.certificate("server", "server", "DNS:localhost", "IP:127.0.0.1")
        self.pki.certificate("client", "alice")
        self.pki.certificate("client", "mallory", ca="other")
        self.pki.trust("mallory")  # trusts the server, is not trusted by it
        self.pki.trust("nobody")
        sparse(self.folder / "vol.img", SIZE)
        daemon.configure(self.pki.section() + CONFIG.format(folder=self.folder, port=port))
        daemon.start()
        daemon.logged("export.ready", [f"nbds://127.0.0.1:{port}/vol"])  # the URI for clients

    def uri(self, who: str = "alice") -> str:
        return f"nbds://localhost:{self.port}/vol?tls-certificates={self.pki / who}"

    def qemu(self, program: str, *words: str, who: str = "alice", ok: bool = True) -> Result:
        """qemu-io or a command of qemu-img with the volume as its image; WORDS are behind it."""
        credentials = f"tls-creds-x509,id=tls,endpoint=client,dir={self.pki / who}"
        image = f"driver=nbd,host=localhost,port={self.port},export=vol,tls-creds=tls"
        return run([*program.split(), "--object", credentials, "--image-opts", image, *words], ok=ok, seconds=60)

    def nbdkit(self) -> Process:
        """nbdkit as a client with TLS; serves at `proxy` without."""
        via = ["hostname=localhost", f"port={self.port}", "export=vol", "tls=require"]
        command = ["nbdkit", "-U", str(self.folder / "proxy.sock"), "-f", "nbd", *via]
        process = Process([*command, f"tls-certificates={self.pki / 'alice'}"], self.folder / "nbdkit.err")
        eventually((self.folder / "proxy.sock").is_socket, 20, "nbdkit listens")
        return process

    @property
    def proxy(self) -> str:
        return f"nbd+unix:///?socket={self.folder}/proxy.sock"

    def is_served(self, uri: str | None = None) -> None:
        assert int(run(["nbdinfo", "--size", uri or self.uri()], seconds=60).stdout) == SIZE


@pytest.fixture
def world(daemon: Daemon, free_port: Callable[[], int]) -> World:
    need("openssl", "nbdinfo", "nbdcopy", "qemu-io", "qemu-img", "nbdkit")
    return World(daemon, free_port())


def is_refused(*command: str, mentions: str = "") -> None:
    """A foreign program must end with 1, and its error mentions this."""
    result = run(command, ok=False, seconds=60)
    assert result.code == 1 and mentions in result.stderr, result.describe()


def test_clients_with_certificates(world: World, folder: Path) -> None:
    """libnbd, QEMU and nbdkit."""
    world.is_served()
    assert run(["nbdinfo", "--json", world.uri()]).json()["TLS"] is True
    unix = f"socket={folder}/tls.sock&tls-hostname=localhost&tls-certificates={world.pki / 'alice'}"
    result = run(["nbdinfo", "--size", f"nbds+unix:///vol?{unix}"], ok=False)
    if "tls-hostname" not in result.stderr:  # that an older libnbd does not know
        assert result.code == 0, result.describe()

    image = random_file(folder / "in", SIZE)
    run(["nbdcopy", "--connections=4", "--flush", image, world.uri()])
    run(["nbdcopy", "--connections=4", world.uri(), folder / "out"])
    assert_same(image, folder / "out", "copied in and out over TLS")

    commands = ["write -P 0x5a 4097 70001", "read -P 0x5a 4097 70001", "write -z 1M 1M", "read -P 0 1M 1M", "flush"]
    result = world.qemu("qemu-io", *(word for command in commands for word in ("-c", command)))
    assert not any(word in (result.stdout + result.stderr).lower() for word in ("failed", "error")), result.describe()
    world.qemu("qemu-img map")
    proxy = world.nbdkit()
    world.is_served(world.proxy)
    proxy.terminate()
    world.daemon.stop()


@pytest.mark.heavy
def test_more_is_asked_for_than_the_memory(world: World, folder: Path) -> None:
    """Clients that ask for more than the memory of the pool and read nothing for a while, and clients that stop in the
    middle of a write: the engine keeps the memory that it needs, and others are served."""
    daemon = world.daemon
    image = random_file(folder / "in", SIZE)
    run(["nbdcopy", "--connections=4", "--flush", image, world.uri()])
    # More than once around: 300 MiB of replies, and 192 MiB for them and for the engine, which must go on as well.
    start_pressure(folder, world.port, world.pki / "alice", image, clients=3, requests=100).succeeds(100)

    certificates = str(world.pki / "alice")
    stalled = [connect(str(world.port), certificates) for _ in range(3)]
    for stream in stalled:
        stream.sendall(header(WRITE, 1, 0, 32 * MIB) + bytes(100_000))
    honest = connect(str(world.port), certificates)
    honest.settimeout(60)
    for length in (4096, 8 * MIB):
        honest.sendall(header(WRITE, 1, 0, length) + bytes(length))
        assert int.from_bytes(read(honest, 4)) == REPLY_MAGIC and read(honest, 12) == bytes(11) + b"\1"
    for stream in (*stalled, honest):
        stream.close()
    daemon.logged("client.refused", ["cn:alice"])
    assert any("cn:alice" in event["message"] for event in daemon.events("client.refused"))
    assert not daemon.events("device.failed,destage.failed,cache,pool.failed") and not daemon.alarms()
    stats = daemon.api.get("/v1/stats")["volumes"]["vol"]
    assert stats["failed_requests"] == 0
    assert memory(daemon.pid, "VmHWM") < 500 * MIB
    daemon.stop()


def test_no_certificate_gets_nothing(world: World) -> None:
    """Neither a client without one, nor one with a certificate of somebody else's authority."""
    for who in ("nobody", "mallory"):
        is_refused("nbdinfo", "--size", world.uri(who))
        assert world.qemu("qemu-io", "-c", "read 0 512", who=who, ok=False).code == 1
    refusals = world.daemon.events("client.refused")
    assert refusals, "refusals are no events"
    world.daemon.stop()


def test_plaintext_gets_nothing(world: World, folder: Path) -> None:
    plain = f"nbd://localhost:{world.port}/vol"
    is_refused("nbdinfo", "--size", plain, mentions="TLS")
    is_refused("qemu-img", "info", plain, mentions="TLS")
    is_refused("nbdkit", "-U", "-", "nbd", f"uri={plain}", "--run", 'nbdinfo --size "$uri"')
    is_refused("nbdinfo", "--size", f"nbd+unix:///vol?socket={folder}/tls.sock")
    world.daemon.stop()


STARTTLS = [starttls.plaintext, starttls.old_way, starttls.injection, starttls.endless, starttls.crowd]


def test_starttls_as_an_attacker_tries_it(world: World) -> None:
    for case in STARTTLS:
        case(world.port)
        world.is_served()
    assert "panicked at" not in world.daemon.running.stderr()
    world.daemon.stop()


def test_slow_handshakes_are_cut_off(world: World) -> None:
    starttls.slow(world.port)
    world.is_served()
    world.daemon.stop()


@pytest.mark.heavy
def test_fio_verifies_over_tls(world: World, folder: Path) -> None:
    """Through nbdkit, as fio takes no names of certificates."""
    need("fio")
    proxy = world.nbdkit()
    shape = ["--rw=randrw", "--bsrange=512-256k", "--blockalign=512", "--size=32M", "--iodepth=16", "--do_verify=1"]
    fio_nbd(folder, "tls", world.proxy, *shape).succeeds()
    proxy.terminate()
    world.daemon.stop()


@pytest.mark.heavy
def test_nothing_stays_of_vanished_clients(world: World, folder: Path) -> None:
    """A thousand begin a handshake and are gone, several times: connections, descriptors and memory are given back.
    They are few events, and no secret is in any output."""
    daemon = world.daemon
    most, memories = 1 << 20, []

    def none_is_left() -> bool:
        connections = daemon.api.get("/v1/stats")["pools"]["fast"]["connections"]
        assert connections == 0, f"{connections} connections are left of those that have vanished"
        # The connection that has just asked is there for a moment after its answer.
        assert descriptors(daemon.pid) <= most, f"{descriptors(daemon.pid)} descriptors of {most}"
        return True

    for _ in range(7):
        starttls.vanish(world.port)
        eventually(none_is_left, 30, "all of them are gone")
        most = min(most, descriptors(daemon.pid))
        memories.append(memory(daemon.pid))
        # How many are there at once is by chance, and so is what it needs for them; what stays would grow each time.
        if len(memories) >= 3 and memories[-1] <= memories[-3] + 4 * MIB:
            break
    else:
        raise AssertionError(f"the memory grows: {memories}")
    run(["nbdcopy", "--connections=4", world.uri(), folder / "out"])

    # Of those that are gone before the daemon has read what they sent none is refused.
    is_refused("nbdinfo", "--size", f"nbd://localhost:{world.port}/vol", mentions="TLS")
    eventually(lambda: daemon.events("client.refused"), 30, "a refusal is an event")
    assert len(daemon.events("client.refused")) < 100, "there are too many events"
    has_no_secrets(world, [])
    daemon.stop()


def has_no_secrets(world: World, more: Iterable[str | Path]) -> None:
    daemon = world.daemon
    texts: list[str | bytes | Path] = [daemon.log, daemon.running.output, *more]
    texts += [daemon("events", "--kind", "client", "--after", "oldest").stdout, daemon("status", "--json").stdout]
    checked = daemon("config", "check", "--config", daemon.config_path, ok=False)
    assert_no_secrets(keys(world.pki), [*texts, checked.stdout, checked.stderr])


def test_certificates_are_exchanged_by_reload(world: World) -> None:
    """Clients that are connected stay; a broken key changes nothing, and TLS goes on."""
    daemon, pki = world.daemon, world.pki
    proxy = world.nbdkit()
    world.is_served(world.proxy)
    (pki / "server").rename(pki / "old-server")
    pki.certificate("server", "server", "DNS:localhost", ca="other")
    reloaded = daemon("reload").stdout
    assert "tls.lan" in reloaded
    is_refused("nbdinfo", "--size", world.uri())
    pki.trust("alice", "other")
    world.is_served()
    world.is_served(world.proxy)

    (pki / "old-key").write_bytes((pki / "server" / "server-key.pem").read_bytes())
    (pki / "server" / "server-key.pem").write_text("garbage\n")
    refused = daemon.refused("cli.reload-incomplete", "reload", mentions=["tls.lan"])
    world.is_served()
    is_refused("nbdinfo", "--size", f"nbd://localhost:{world.port}/vol", mentions="TLS")
    proxy.terminate()
    has_no_secrets(world, [reloaded, refused.text])
    daemon.stop()

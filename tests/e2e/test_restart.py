"""Restart without an I/O error. Under a service manager the daemon is killed and upgraded while fio (through nbdkit,
which connects again) and qemu-io (which does so itself) use it: they see pauses, and nothing else. Clients that
cannot connect again keep their connections through upgrades. A successor that cannot start, or cannot serve, leaves
everything as it was.

KILLS=25 UPGRADES=25 PLAIN_UPGRADES=15 for the long run; FIGURES=PATH writes the pauses to PATH.mixed.json and
PATH.plain.json."""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import Fio, fio_nbd, need
from harness.command import BINARY, Forebay, run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.drill import main_pid
from harness.nbd import READ, WRITE, Client
from harness.proc import kill_if_of
from harness.process import Process
from harness.waiting import eventually

E2E = Path(__file__).resolve().parent
KILLS = int(os.environ.get("KILLS", "3"))
UPGRADES = int(os.environ.get("UPGRADES", "3"))
PLAIN_UPGRADES = int(os.environ.get("PLAIN_UPGRADES", "3"))
BLOCK = b"k" * 4096
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "96MiB" }}]

[pool.second]
devices = [{{ path = "{folder}/flash2.img", size = "64MiB" }}]

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["nbd+unix:///vol?socket={folder}/vol.sock"]
dirty_low_pct = 5

[volume.other]
pool = "second"
backing = "file:{folder}/other.img"
exports = ["nbd+unix:///other?socket={folder}/other.sock"]
"""


class Managed:
    """The daemon under a stand-in for systemd. Its program is a copy, so that it can be replaced while it runs."""

    def __init__(self, daemon: Daemon, devices: Devices, metrics: int) -> None:
        self.daemon = daemon
        self.folder = daemon.folder
        self.operator = daemon.forebay
        self.program = Path(shutil.copy(BINARY, self.folder / "forebay"))
        self.manager = self.folder / "manager"
        self.manager.mkdir()
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        configure(daemon, f'metrics_listen = "127.0.0.1:{metrics}"\n')
        daemon.forebay = Forebay(self.folder, admin=daemon.admin, binary=self.program)
        daemon.wrapper = [sys.executable, str(E2E / "harness/service_manager.py"), str(self.manager)]
        devices.at_exit(self.kill_main)
        daemon.start()

    def kill_main(self) -> None:
        """The daemon, once its manager is gone."""
        kill_if_of(self.folder, main_pid(self.manager))

    def drill(self, name: str, kills: int, upgrades: int) -> Process:
        """Starts a drill (harness/drill.py); its pauses come to NAME.json."""
        places = ["--folder", self.manager, "--socket", self.daemon.socket(), "--export", "vol"]
        binary = ["--admin", self.daemon.admin, "--forebay", self.operator.binary]
        numbers = ["--kills", kills, "--upgrades", upgrades, "--rest", 0.5, "--seed", os.environ.get("SEED", "1")]
        words = [*places, *binary, *numbers, "--json", self.folder / f"{name}.json"]
        return Process([sys.executable, "-m", "harness.drill", *map(str, words)], self.folder / f"{name}.err", cwd=E2E)

    def judge(self, drill: Process, name: str) -> None:
        drill.succeeds(60)
        assert "panicked at" not in self.daemon.running.stderr()
        if figures := os.environ.get("FIGURES"):
            shutil.copy(self.folder / f"{name}.json", f"{figures}.{name}.json")


class FioRounds:
    """Short jobs of fio that write and verify, one after the other."""

    def __init__(self, folder: Path, name: str, uri: str, *options: str) -> None:
        self.folder, self.name, self.uri, self.options = folder, name, uri, options
        self.rounds = self.cut_off = 0
        self.job = self.begin()

    def begin(self) -> Fio:
        seed = f"--randseed={self.rounds + 1}"
        shape = ["--iodepth=16", "--bsrange=4k-64k", "--size=32M", "--do_verify=1"]
        return fio_nbd(self.folder, self.name, self.uri, *shape, seed, *self.options)

    def step(self) -> None:
        """The next one, if this one has ended. A job whose connection a kill cut off in the handshake has done nothing
        yet: it begins again."""
        if self.job.process.is_running:
            return
        if self.cut_off < KILLS and "nbd init failed" in self.job.process.stderr() + self.job.report.read_text():
            self.cut_off += 1
        else:
            self.finish()
        self.job = self.begin()

    def finish(self) -> None:
        self.job.succeeds()
        self.rounds += 1


class QemuRounds:
    """One qemu-io that reads what it wrote, block by block, with patterns that change. It connects again by itself."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.folder = folder
        image = f"driver=nbd,server.type=unix,server.path={socket},export=vol,reconnect-delay=120"
        command = ["qemu-io", "-t", "none", "--image-opts", image]
        self.process = Process(command, folder / "qemu.err", stdin=subprocess.PIPE)
        os.set_blocking(self.stdin, False)
        self.round = 0

    @property
    def stdin(self) -> int:
        assert self.process.popen.stdin
        return self.process.popen.stdin.fileno()

    def step(self) -> None:
        """Another round, if it has done the one before."""
        if self.process.stdout().count("read 524288/524288") < self.round:
            assert self.process.is_running, self.process.tail()
            return
        self.round += 1
        one, two = self.round % 250 + 1, self.round % 250 + 2
        writes = [f"write -P {one} 200M 1M", f"aio_write -P {two} 201M 512k", "aio_flush"]
        reads = [f"read -P {one} 200M 1M", f"read -P {two} 201M 512k"]
        os.write(self.stdin, "".join(f"{line}\n" for line in [*writes, *reads]).encode())

    def finish(self) -> None:
        assert self.process.popen.stdin
        self.process.popen.stdin.close()
        out = self.process.succeeds(60) + self.process.stderr()
        assert out.count("read 524288/524288") == self.round, out[-2000:]
        assert not any(word in out.lower() for word in ("error", "fail", "mismatch")), out[-2000:]


class Scraper:
    """Asks for metrics. A kill may cut it off, but its connection is never refused."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked = 0

    def step(self) -> None:
        self.asked += 1
        try:
            self.scrape()
        except urllib.error.URLError as error:
            assert not isinstance(error.reason, ConnectionRefusedError), f"the port of the metrics was closed: {error}"
        except (http.client.HTTPException, ConnectionResetError):
            pass

    def scrape(self) -> None:
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            assert b"\nforebay_build_info" in answer.read()


def configure(daemon: Daemon, more: str = "") -> None:
    sparse(daemon.folder / "vol.img", 256 * MIB)
    sparse(daemon.folder / "other.img", 64 * MIB)
    daemon.configure(CONFIG.format(folder=daemon.folder), daemon=more)


@pytest.fixture
def managed(daemon: Daemon, devices: Devices, free_port: Callable[[], int]) -> Managed:
    return Managed(daemon, devices, free_port())


@pytest.mark.heavy
@pytest.mark.limit(200 + 20 * (KILLS + UPGRADES))
def test_kills_and_upgrades_are_pauses_only(managed: Managed, folder: Path) -> None:
    need("fio", "nbdkit", "qemu-io")
    if run(["nbdkit", "--dump-plugin", "nbd"], ok=False).code != 0:
        pytest.skip("this nbdkit has no nbd plugin")
    socket = managed.daemon.socket()
    retry = [f"socket={socket}", "export=vol", "retries=100", "retry-delay=1", "retry-exponential=no"]
    kit = Process(["nbdkit", "-f", "-U", str(folder / "kit.sock"), "--filter=retry", "nbd", *retry], folder / "kit.err")
    eventually((folder / "kit.sock").is_socket, 20, "nbdkit listens")

    fio = FioRounds(folder, "kit", f"nbd+unix:///?socket={folder}/kit.sock", "--rw=randwrite")
    qemu = QemuRounds(folder, socket)
    scraper = Scraper(managed.metrics)
    drill = managed.drill("mixed", KILLS, UPGRADES)
    while drill.is_running:
        for client in (fio, qemu, scraper):
            client.step()
        time.sleep(0.05)
    managed.judge(drill, "mixed")
    fio.finish()
    qemu.finish()
    assert scraper.asked > 10
    scraper.scrape()
    kit.terminate()
    managed.daemon.stop()


@pytest.mark.heavy
@pytest.mark.limit(200 + 20 * PLAIN_UPGRADES)
def test_upgrades_keep_connections(managed: Managed, folder: Path) -> None:
    """Clients that cannot connect again lose no connection and no data."""
    need("fio")
    fio = FioRounds(folder, "plain", managed.daemon.nbd(), "--rw=randrw", "--offset=64M")
    fio.cut_off = KILLS  # there are no kills, so no connection may be cut off
    oracle = managed.daemon.oracle("other")
    load = oracle.load()
    drill = managed.drill("plain", 0, PLAIN_UPGRADES)
    while drill.is_running:
        fio.step()
        time.sleep(0.05)
    managed.judge(drill, "plain")
    fio.finish()
    assert load.is_running, f"the writer lost its connection: {load.tail()}"
    assert "under way at the end: 0" in oracle.finish(load)
    oracle.verify()
    managed.daemon.stop()


def kept_client(daemon: Daemon) -> Client:
    """A client whose connection must still be there at the end."""
    client = Client(str(daemon.socket()), "vol")
    assert client.call(WRITE, 0, len(BLOCK), BLOCK)[0] == 0
    return client


def is_kept(client: Client) -> None:
    assert client.call(READ, 0, len(BLOCK)) == (0, BLOCK)
    client.close()


@contextlib.contextmanager
def second_pool_that_cannot_be_opened(daemon: Daemon):
    """The successor opens the first pool, and the device of the second one is no cache."""
    good = daemon.config_path.read_text()
    precious = daemon.folder / "precious"
    precious.write_text(good)
    daemon.config_path.write_text(good.replace(f"{daemon.folder}/flash2.img", str(precious)))
    yield
    daemon.config_path.write_text(good)


def test_failed_upgrade_changes_nothing(managed: Managed, folder: Path) -> None:
    daemon, operator = managed.daemon, managed.operator
    oracle = daemon.oracle("other")
    oracle.write(seconds=1)
    before = main_pid(managed.manager)
    client = kept_client(daemon)

    managed.program.rename(folder / "forebay.good")
    shutil.copy("/bin/false", managed.program)
    operator.refused("daemon.upgrade-failed", "upgrade")
    (folder / "forebay.good").replace(managed.program)
    with second_pool_that_cannot_be_opened(daemon):
        operator.refused("daemon.upgrade-failed", "upgrade")
        assert daemon.api.get("/v1/daemon")["upgrade"]["error"]
    assert daemon.api.get("/v1/daemon")["pid"] == main_pid(managed.manager) == before, "another process is the daemon"
    is_kept(client)
    oracle.verify("after two failed upgrades")

    # The next one works.
    operator("upgrade")
    pid = daemon.api.get("/v1/daemon")["pid"]
    assert pid != before
    eventually(lambda: main_pid(managed.manager) == pid, 20, "the manager knows the successor")
    daemon.stop()
    operator("check", folder / "flash.img")


def test_socket_files_stay_without_manager(daemon: Daemon) -> None:
    """A successor that gives up removes no socket file; an orderly end removes all."""
    configure(daemon)
    daemon.start()
    client = kept_client(daemon)
    sockets = [daemon.socket(), daemon.socket("other"), daemon.admin]
    before = [socket.stat().st_ino for socket in sockets]
    with second_pool_that_cannot_be_opened(daemon):
        daemon.refused("daemon.upgrade-failed", "upgrade")
    assert [socket.stat().st_ino for socket in sockets] == before
    is_kept(client)
    daemon("pool", "list")
    daemon.stop()
    assert not daemon.socket().exists(), "an orderly end left a socket file"


def test_file_decides_what_an_upgrade_serves(daemon: Daemon, folder: Path) -> None:
    """A volume that is served and not in the file any more, and a file that is wrong: no upgrade, with the reason.
    Another admin socket: the successor is found there."""
    configure(daemon)
    daemon.start()
    text = daemon.config_path.read_text()
    client = kept_client(daemon)
    daemon.config_path.write_text(text[: text.index("[volume.")])
    daemon.refused("upgrade.blocked", "upgrade", "--keep-clients", mentions=["forebay reload"])
    daemon.config_path.write_text(text + "\nnonsense")
    daemon.refused("daemon.upgrade-failed", "upgrade", mentions=["nonsense"])
    events = [event["message"] for event in daemon.events("daemon.upgrade-failed")]
    assert len(events) == 2 and "nonsense" in events[1], events
    assert client.call(READ, 0, len(BLOCK)) == (0, BLOCK)
    moved = folder / "moved.sock"
    daemon.config_path.write_text(text.replace(str(daemon.admin), str(moved)))
    answer = daemon("upgrade")
    assert f"--admin {moved}" in answer.stdout, answer
    is_kept(client)
    pid = int(answer.stdout.split()[1])
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 30, "the successor has ended")


def test_upgrades_at_once_are_one_upgrade(daemon: Daemon) -> None:
    """The daemon carries out one of several and refuses the others, each with an answer. One that came while the
    successor took over may be the second upgrade."""
    configure(daemon)
    daemon.start()
    clients = [daemon.forebay.start("upgrade", "--json", name=f"upgrade-{number}") for number in range(4)]
    codes = [client.wait(60) for client in clients]
    assert 0 in codes, [client.stderr() for client in clients]
    for client, code in zip(clients, codes, strict=True):
        assert code == 0 or "upgrade" in client.stderr(), client.stderr()
        assert "no answer" not in client.stderr(), client.stderr()
    pid = daemon.api.get("/v1/daemon")["pid"]
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 30, "the successor has ended")


def test_one_daemon_for_each_state_directory(daemon: Daemon, folder: Path) -> None:
    """A second one is refused before it opens anything; one that was killed leaves the directory free, and a failed
    upgrade keeps it."""
    configure(daemon)
    daemon.start()
    second = Daemon(folder, "second")
    second.state_dir = daemon.state_dir
    second.configure(f'[pool.fast]\ndevices = [{{ path = "{folder}/third.img", size = "64MiB" }}]\n')
    serve = ["serve", "--config", second.config_path]
    try:
        second.refused("daemon.runs-already", *serve, mentions=[f"pid {daemon.pid}", daemon.state_dir])
        assert not (folder / "third.img").exists()
        text = daemon.config_path.read_text()
        daemon.config_path.write_text(text + "\nnonsense")
        daemon.refused("daemon.upgrade-failed", "upgrade")
        daemon.config_path.write_text(text)
        second.refused("daemon.runs-already", *serve)
        daemon.kill()
        daemon.start()
        daemon.stop()
    finally:
        second.clean_up()

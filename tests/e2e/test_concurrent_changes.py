"""Two operators change the same things at the same time. Whichever is first: the configuration file, what the daemon
shows and what it serves agree afterwards, and a restart changes nothing. A reload that finds nothing new in the file
changes nothing and refuses nothing, whatever is under way."""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.agreement import agree, first_byte
from harness.api import ApiError
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.hanging import HangingFiles, hanging_files
from harness.nbd import WRITE, Client
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "32MiB" }}]

[pool.old]
devices = [{{ path = "{folder}/old.img", size = "16MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{nbd}"]
idle_delay = "off"
"""
NAMES = ("db", "vm")
# What an operator may be told who came second.
REFUSALS = (404, 409, 422)
PARTS = 6
OFFSETS_MS = (0, 0, 1, 2, 5, 10, 20, 50, 100)


class Stage:
    """A daemon with pools `fast` and `old` and volume `db`; `vm` and the pool `spare` come and go."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.folder = daemon.folder
        self.written = dict.fromkeys(NAMES, 0)
        self.replacements = 0
        for name in NAMES:
            sparse(self.folder / f"{name}.img", 32 * MIB)
        daemon.configure(CONFIG.format(folder=self.folder, nbd=daemon.nbd("db")))
        daemon.start()

    # --- what operators ask for

    def attach(self, name: str) -> None:
        body = {"name": name, "pool": "fast", "backing": f"file:{self.folder}/{name}.img"}
        settings = {"idle_delay": "off"}
        self.daemon.api.post("/v1/volumes", {**body, "exports": [self.daemon.nbd(name)], "settings": settings})

    def detach(self, name: str) -> None:
        self.daemon.api.delete(f"/v1/volumes/{name}")

    def keep(self, name: str) -> None:
        self.daemon.api.delete(f"/v1/volumes/{name}?how=keep")

    def reload(self, _: str) -> None:
        done = self.daemon.api.post("/v1/reload")
        assert done == {"changed": [], "refused": []}, f"nothing is new in the file: {done}"

    def hangup(self, _: str) -> None:
        before = len(self.reloads())
        os.kill(self.daemon.pid, signal.SIGHUP)
        eventually(lambda: len(self.reloads()) > before, 60, "a reload")
        assert all("nothing has changed" in what for what in self.reloads()), self.reloads()

    def resize(self, name: str) -> None:
        self.daemon.api.post(f"/v1/volumes/{name}/resize", {"size": "24MiB"})

    def flush(self, name: str) -> None:
        self.daemon.api.post(f"/v1/volumes/{name}/flush")

    def mode(self, name: str) -> None:
        self.daemon.api.patch(f"/v1/volumes/{name}/settings", {"set": {"mode": "writethrough"}})

    def replace(self, _: str) -> None:
        self.replacements += 1
        device = {"path": f"{self.folder}/flash-{self.replacements}.img", "size": "32MiB"}
        self.daemon.api.post("/v1/pools/fast/replace", {"device": device})

    def create(self, _: str) -> None:
        device = {"path": f"{self.folder}/spare.img", "size": "16MiB"}
        self.daemon.api.post("/v1/pools", {"name": "spare", "devices": [device]})

    def remove(self, _: str) -> None:
        self.daemon.api.delete("/v1/pools/old?erase=true")

    def cancel(self, _: str) -> None:
        for job in self.open_jobs():
            self.daemon.api.delete(f"/v1/jobs/{job}")

    # --- the stage

    def open_jobs(self) -> list[str]:
        return [job["id"] for job in self.daemon.api.get("/v1/jobs") if not job["finished"]]

    def reloads(self) -> list[str]:
        """What reloads by signal have told so far, but for settings that somebody set."""
        found = [message for message in self.daemon.messages() if message.id == "config.reloaded"]
        return [message.what for message in found if message.what.startswith("reloaded")]

    def settle(self) -> None:
        eventually(lambda: not self.open_jobs(), 60, "the end of all jobs")

    def set_up(self) -> None:
        """As at the beginning, with dirty data in `db`."""
        volumes, pools = self.daemon.volumes(), {pool["name"] for pool in self.daemon.api.get("/v1/pools")}
        if "vm" in volumes:
            self.daemon.api.delete("/v1/volumes/vm?how=discard")
            self.written["vm"] = 0
        if "spare" in pools:
            self.daemon.api.delete("/v1/pools/spare?erase=true")
        if "old" not in pools:
            device = {"path": f"{self.folder}/old.img", "size": "16MiB"}
            self.daemon.api.post("/v1/pools", {"name": "old", "devices": [device]})
        if volumes.get("db", {"state": "absent"})["state"] == "absent":
            self.attach("db")
        self.settle()
        if self.daemon.volume("db")["size_bytes"] != 32 * MIB:
            self.daemon.api.post("/v1/volumes/db/resize", {"size": "32MiB"})
        self.daemon.api.patch("/v1/volumes/db/settings", {"set": {"mode": "writeback"}})
        self.settle()
        (self.folder / "vm.img").write_bytes(b"")
        sparse(self.folder / "vm.img", 32 * MIB)
        self.write("db")

    def write(self, name: str) -> None:
        byte = self.written[name] = self.written[name] % 250 + 1
        with Client(str(self.daemon.socket(name)), name) as client:
            for at in range(32):
                error, _ = client.call(WRITE, at << 18, 4096, bytes([byte]) * 4096)
                assert error == 0, f"error {error} of a write to {name}"

    def asked(self, ask: Callable[[str], None], name: str, offset: float, together: threading.Barrier) -> str:
        """One of the two operators; what came of it."""
        together.wait()
        time.sleep(offset)  # variety, not order: no outcome depends on it
        try:
            ask(name)
        except ApiError as error:
            assert error.status in REFUSALS, error
            return error.id
        return "done"

    def race(self, first: str, second: str, offset: float) -> None:
        """Both at the same time, the second so much later (or the first, if that is negative)."""
        self.set_up()
        name = "vm" if "attach" in (first, second) else "db"
        together = threading.Barrier(2)
        operators = [
            (getattr(self, "attach" if first == "again" else first), max(0, -offset)),
            (getattr(self, "attach" if second == "again" else second), max(0, offset)),
        ]
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(self.asked, ask, name, offset, together) for ask, offset in operators]
            outcome = [future.result(120) for future in asked]
        self.settle()
        when = f"{first} beside {second} at {offset * 1000:.0f} ms: {outcome}"
        agree(self.daemon, NAMES, when)
        kept = "db" in self.daemon.volumes() and self.daemon.volumes()["db"]["state"] == "absent"
        if not kept:
            byte = first_byte(self.daemon, "db", self.folder / "db.img")
            assert byte == self.written["db"], f"{when}: byte {byte}, {self.written['db']} was acknowledged"
        self.daemon.never_logged("config.refused")

    def restart(self, when: str) -> None:
        before = agree(self.daemon, NAMES, when)
        self.daemon.restart()
        after = agree(self.daemon, NAMES, f"a restart after {when}")
        assert after == before, f"a restart after {when}"


OPERATIONS = [
    "attach",
    "again",
    "detach",
    "keep",
    "reload",
    "hangup",
    "resize",
    "flush",
    "mode",
    "replace",
    "create",
    "remove",
    "cancel",
]
PAIRS = list(itertools.combinations_with_replacement(OPERATIONS, 2))


def pairs_of(part: int) -> list[tuple[str, str]]:
    """The pairs of one of PARTS tests, in an order that is always the same."""
    shuffled = random.Random(36).sample(PAIRS, len(PAIRS))
    return shuffled[part::PARTS]


def offset_of(rng: random.Random) -> float:
    return rng.choice((-1, 1)) * rng.choice(OFFSETS_MS) / 1000


@pytest.mark.parametrize("part", range(PARTS))
def test_pairs_of_changes_agree(daemon: Daemon, part: int) -> None:
    """Each pair once, at an offset by its seed."""
    stage, rng = Stage(daemon), random.Random(part)
    for first, second in pairs_of(part):
        stage.race(first, second, offset_of(rng))
    stage.restart("the last pair")
    stage.daemon.stop()


@pytest.mark.long
@pytest.mark.limit(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_pairs_of_changes_agree_at_many_offsets(daemon: Daemon, part: int) -> None:
    """Each pair at all offsets, with a restart after each."""
    stage = Stage(daemon)
    for first, second in pairs_of(part):
        for offset, sign in itertools.product(OFFSETS_MS[1:], (-1, 1)):
            stage.race(first, second, sign * offset / 1000)
            stage.restart(f"{first} beside {second} at {sign * offset} ms")
    stage.daemon.stop()


def there_and_back(stage: Stage, how: str, number: int) -> None:
    """One change of `db`, and its opposite."""
    if how in ("detach", "keep"):
        stage.write("db")
        getattr(stage, how)("db")
        stage.settle()
        agree(stage.daemon, NAMES, f"detach {number}")
        stage.attach("db")
    elif how == "resize":
        for size in ("24MiB", "32MiB"):
            stage.daemon.api.post("/v1/volumes/db/resize", {"size": size})
            stage.settle()
    else:
        for value in ("40", None):
            stage.daemon.api.patch("/v1/volumes/db/settings", {"set": {"dirty_high_pct": value}})


@pytest.mark.parametrize("how", ["detach", "keep", "resize", "set"])
def test_reloads_beside_changes(daemon: Daemon, how: str) -> None:
    """Two operators reload all the time. Another one changes something there and back."""
    stage, stop = Stage(daemon), threading.Event()

    def reload_always() -> int:
        count = 0
        while not stop.is_set():
            stage.reload("")
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        reloads = [pool.submit(reload_always) for _ in range(2)]
        try:
            for number in range(10):
                there_and_back(stage, how, number)
                agree(daemon, NAMES, f"there and back {number}")
        finally:
            stop.set()
        assert all(future.result(60) for future in reloads)
    stage.restart("the last change")
    daemon.stop()


@pytest.fixture
def hanging(folder: Path, make_daemon: Callable[..., Daemon], fuse: None) -> Iterator[HangingFiles]:
    del make_daemon, fuse
    with hanging_files(folder, "vm", size=32 * MIB) as files:
        yield files


def test_volume_whose_store_hangs_while_it_is_attached(daemon: Daemon, hanging: HangingFiles) -> None:
    """It is its attach's alone. Others are changed meanwhile, and a reload neither waits nor takes it."""
    stage = Stage(daemon)
    body = {"name": "vm", "pool": "fast", "backing": f"file:{hanging.path('vm')}", "exports": [daemon.nbd("vm")]}
    hanging.forget_size()
    hanging.pause()
    with ThreadPoolExecutor(1) as pool:
        attach = pool.submit(daemon.api.request, "POST", "/v1/volumes", body)
        eventually(lambda: "vm" in daemon.config()["volume"], 20, "the attach has begun")
        stage.reload("")
        stage.hangup("")
        stage.mode("db")
        for method, target, asked in (
            ("DELETE", "/v1/volumes/vm", None),
            ("POST", "/v1/volumes", body),
            ("PATCH", "/v1/volumes/vm/settings", {"set": {"dirty_high_pct": "40"}}),
            ("POST", "/v1/pools/fast/export", {}),
        ):
            status, answer = daemon.api.request(method, target, asked)
            assert status == 409 and b'"volume.busy"' in answer, f"{method} {target}: {status} {answer!r}"
        status, answer = daemon.api.request("DELETE", "/v1/pools/fast?force=true")
        assert status == 409 and b'"pool.in-use"' in answer, answer
        hanging.resume()
        status, answer = attach.result(60)
    assert status == 201, answer
    stage.restart("an attach that took long")
    daemon.stop()

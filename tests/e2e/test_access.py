"""Who may do what: exports by user, group, address and name of the certificate; the admin API by level. An export
that a client may not use does not exist for it; no secret appears in any output."""

import base64
import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import BINARY, Forebay, Result, run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.messages import check, parse
from harness.process import Process
from harness.tls import Pki, assert_no_secrets, keys
from harness.waiting import eventually

MINE, YOURS, SOMEBODY, NOBODY_GROUP = 4711, 4712, 4713, 65534
CONFIG = """
[access.mine]
uids = [{uid}]

[access.yours]
gids = [{yours}]

[access.alice]
clients = ["cn:alice"]

[access.bob]
clients = ["dns:BOB.example", "uri:spiffe://test/nobody"]
addresses = ["127.0.0.0/8"]

[access.here]
addresses = ["127.0.0.1"]

[access.elsewhere]
addresses = ["192.0.2.0/24"]

[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.mine]
pool = "fast"
backing = "file:{folder}/mine.img"
exports = ["nbd+unix:///mine?socket={folder}/nbd.sock&access=mine", "nbds://127.0.0.1:{tls}/mine?tls=lan&access=alice"]

[volume.yours]
pool = "fast"
backing = "file:{folder}/yours.img"
exports = ["nbd+unix:///yours?socket={folder}/nbd.sock&access=yours", "nbds://127.0.0.1:{tls}/yours?tls=lan&access=bob"]

[volume.all]
pool = "fast"
backing = "file:{folder}/all.img"
exports = [
    "nbd+unix:///all?socket={folder}/nbd.sock",
    "nbd://127.0.0.1:{open}/all?access=here",
    "nbd://127.0.0.2:{open}/all?access=elsewhere",
]
"""
# A client of `mine` and `all` that says when it has connected, and when `mine` is cut off.
HOLDER = """
import sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import nbd
client, other = nbd.Client(sys.argv[2], "mine"), nbd.Client(sys.argv[2], "all")
assert client.call(nbd.READ, 0, 512)[0] == 0
print("connected", flush=True)
try:
    while True:
        client.call(nbd.READ, 0, 512)
        time.sleep(0.1)
except nbd.Disconnected:
    assert other.call(nbd.READ, 0, 512)[0] == 0, "the other export was cut off too"
    print("cut off", flush=True)
"""


class World:
    """A daemon with lists of all kinds, and users, certificates and tokens for it."""

    def __init__(self, daemon: Daemon, free_port: Callable[[], int]) -> None:
        self.daemon = daemon
        self.folder = daemon.folder
        self.pki = Pki(self.folder / "pki")
        self.pki.authority()
        self.pki.certificate("server", "server", "DNS:localhost")
        self.pki.certificate("client", "alice")
        self.pki.certificate("client", "bob", "DNS:bob.example", "URI:spiffe://test/bob")
        self.tokens = [self.folder / "token", self.folder / "read-token"]
        for token in self.tokens:
            token.write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
            token.chmod(0o600)
        self.folder.chmod(0o755)
        self.ports = {name: free_port() for name in ("tls", "open", "admin")}
        for name in ("mine", "yours", "all"):
            sparse(self.folder / f"{name}.img", 16 * MIB)
        self.configure(MINE)
        daemon.start()
        (self.folder / "nbd.sock").chmod(0o666)
        # The binary may lie where other users cannot enter.
        binary = Path(shutil.copy(BINARY, self.folder / "forebay"))
        binary.chmod(0o755)
        self.forebay = Forebay(self.folder, admin=daemon.admin, binary=binary)

    def configure(self, uid: int) -> None:
        """`uid` may use `mine`."""
        files = f'token_file = "{self.tokens[0]}", read_token_file = "{self.tokens[1]}"'
        admin = f'admin_tcp = {{ listen = "127.0.0.1:{self.ports["admin"]}", {files} }}\n'
        levels = f"admin_operate = {{ uids = [{MINE}] }}\nadmin_read = {{ gids = [{YOURS}] }}\n"
        lists = CONFIG.format(folder=self.folder, uid=uid, yours=YOURS, **self.ports)
        self.daemon.configure(self.pki.section() + lists, daemon='admin_mode = "0666"\n' + levels + admin)

    def local(self, export: str) -> str:
        return f"nbd+unix:///{export}?socket={self.folder}/nbd.sock"

    def tls(self, who: str, export: str) -> str:
        return f"nbds://localhost:{self.ports['tls']}/{export}?tls-certificates={self.pki / who}"

    def sees(self, uid: int, groups: list[int]) -> list[str]:
        """Names of the exports that this user is shown."""
        return names(run([*become(uid, groups), "nbdinfo", "--list", "--json", self.local("")]))

    def call(self, token: str, method: str, target: str) -> tuple[int, bytes]:
        """A request to the admin API over TCP."""
        url = f"http://127.0.0.1:{self.ports['admin']}/v1/{target}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def become(uid: int, groups: list[int]) -> list[str]:
    listed = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", str(uid), "--regid", str(NOBODY_GROUP), *listed]


def names(listed: Result) -> list[str]:
    return sorted(export["export-name"] for export in listed.json()["exports"])


def is_let_in(uri: str, *prefix: str) -> None:
    run([*prefix, "nbdinfo", "--size", uri])


def is_refused(uri: str, *prefix: str) -> str:
    """nbdinfo must end with 1; what it says."""
    result = run([*prefix, "nbdinfo", "--size", uri], ok=False, seconds=60)
    assert result.code == 1, result.describe()
    return result.stderr


@pytest.fixture
def world(daemon: Daemon, free_port: Callable[[], int], root: None) -> World:
    del root
    need("openssl", "nbdinfo", "setpriv")
    return World(daemon, free_port)


def test_exports_by_user_and_group(world: World) -> None:
    assert world.sees(MINE, [NOBODY_GROUP]) == ["all", "mine"]
    assert world.sees(YOURS, [NOBODY_GROUP]) == ["all"]
    assert world.sees(SOMEBODY, [YOURS, NOBODY_GROUP]) == ["all", "yours"]
    assert world.sees(SOMEBODY, [NOBODY_GROUP]) == ["all"]
    is_let_in(world.local("mine"), *become(MINE, [NOBODY_GROUP]))
    is_let_in(world.local("yours"), *become(SOMEBODY, [NOBODY_GROUP, YOURS]))  # a supplementary group

    # Hidden and missing exports are not told apart.
    said = {}
    for wrong in ("yours", "nosuch"):
        words = is_refused(world.local(wrong), *become(MINE, []))
        assert wrong in words, words
        said[wrong] = words.replace(wrong, "NAME")
    assert said["yours"] == said["nosuch"]
    world.daemon.stop()


def test_exports_by_certificate(world: World) -> None:
    is_let_in(world.tls("alice", "mine"))
    is_let_in(world.tls("bob", "yours"))  # by a DNS name
    is_refused(world.tls("alice", "yours"))
    is_refused(world.tls("bob", "mine"))
    assert names(run(["nbdinfo", "--list", "--json", world.tls("bob", "")])) == ["yours"]
    world.daemon.stop()


def test_exports_by_address(world: World) -> None:
    is_let_in(f"nbd://127.0.0.1:{world.ports['open']}/all")
    is_refused(f"nbd://127.0.0.2:{world.ports['open']}/all")
    world.daemon.stop()


def test_changed_list_holds_for_connected(world: World) -> None:
    """A client that is removed from a list is cut off from this export, and from no other; that is an event."""
    modules = world.folder / "python"
    modules.mkdir(mode=0o755)
    shutil.copy(Path(sys.modules["harness.nbd"].__file__ or ""), modules)
    (modules / "nbd.py").chmod(0o644)
    python = [*become(MINE, []), "env", "PATH=/usr/bin:/bin", "python3"]
    if run([*python, "-c", ""], ok=False).code != 0:
        pytest.skip("other users have no python3")
    script = ["-c", HOLDER, str(modules), str(world.folder / "nbd.sock")]
    holder = Process([*python, *script], world.folder / "holder.err")
    eventually(lambda: "connected" in holder.stdout(), 30, "the client that is let in connects")
    world.configure(4999)
    world.daemon("reload")
    assert "cut off" in holder.succeeds(60)
    assert world.sees(MINE, [NOBODY_GROUP]) == ["all"]
    eventually(
        lambda: any("mine" in event["message"] for event in world.daemon.events("client.refused")),
        20,
        "an event about the client that was cut off",
    )
    world.daemon.stop()


def test_admin_api_by_level(world: World) -> None:
    def admin(uid: int, groups: list[int], *words: str) -> Result:
        return run([*become(uid, groups), world.forebay.binary, *words], ok=False, env=world.forebay.env)

    may_read = admin(SOMEBODY, [YOURS], "status")
    assert may_read.code == 0, may_read.describe()
    denied = admin(SOMEBODY, [YOURS], "set", "all", "mode=writethrough")
    assert denied.code == 1, denied.describe()
    assert check("api.level", parse(denied.stderr), ["operate", "read"], "a change with the level read").hint
    denied = admin(SOMEBODY, [], "status")
    assert denied.code == 1, denied.describe()
    check("api.level", parse(denied.stderr), ["none"], "a look without a level")
    may_operate = admin(MINE, [NOBODY_GROUP], "set", "all", "mode=writethrough")
    assert may_operate.code == 0, may_operate.describe()
    assert world.daemon.volume("all")["mode"] == "writethrough"
    world.daemon("set", "all", "mode=writeback")

    operate, read = (token.read_text().strip() for token in world.tokens)
    assert world.call(read, "GET", "volumes")[0] == 200
    status, problem = world.call(read, "POST", "reload")
    assert status == 403 and json.loads(problem)["kind"] == "denied", problem
    assert world.call(operate, "POST", "reload")[0] == 200
    assert world.call("", "GET", "volumes")[0] == 401
    world.daemon.stop()


def test_no_secret_is_in_an_output(world: World) -> None:
    daemon = world.daemon
    is_refused(world.tls("alice", "yours"))
    is_refused(world.local("yours"), *become(MINE, []))
    world.call("wrong", "GET", "volumes")
    texts: list[str | bytes | Path] = [daemon.log, daemon.running.output]
    texts += [daemon("events", "--kind", "client", "--after", "oldest").stdout, daemon("status", "--json").stdout]
    targets = ("stats", "openapi.json", "volumes", "daemon")
    texts += [daemon.api.request("GET", f"/v1/{target}")[1] for target in targets]
    texts.append(daemon("reload").stdout)
    refused = run([*become(SOMEBODY, []), world.forebay.binary, "status"], ok=False, env=world.forebay.env)
    texts.append(refused.stderr)
    assert_no_secrets([*keys(world.pki), *world.tokens], texts)
    daemon.stop()

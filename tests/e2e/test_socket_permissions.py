"""Who may connect to a socket is said by its export and by `admin_group`; what operators may name by `allowed_paths`.
A daemon that has no rights for that refuses, and leaves nothing behind."""

import json
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import Result, run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.messages import check, parse

ADMINS, CLIENTS, SOMEBODY = 4811, 4812, 4813
POOL = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
"""
VOLUME = """
[volume.{name}]
pool = "fast"
backing = "file:{folder}/{name}.img"
exports = {exports}
"""


def become(uid: int, group: int) -> list[str]:
    return ["setpriv", "--reuid", str(uid), "--regid", str(group), "--clear-groups"]


def permissions(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    assert stat.S_ISSOCK(found.st_mode), path
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


class World:
    """A daemon of root whose folder everybody may enter."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.folder = daemon.folder
        self.folder.chmod(0o755)
        self.volumes: dict[str, list[str]] = {}
        self.options = ""

    def configure(self, **volumes: list[str]) -> None:
        self.volumes |= volumes
        for name in self.volumes:
            sparse(self.folder / f"{name}.img", 16 * MIB)
        sections = [
            VOLUME.format(name=name, folder=self.folder, exports=uris).replace("'", '"')
            for name, uris in self.volumes.items()
        ]
        self.daemon.configure(POOL.format(folder=self.folder) + "".join(sections), self.options)

    def nbd(self, name: str, parameters: str, socket: str = "nbd") -> str:
        return f"nbd+unix:///{name}?socket={self.folder}/{socket}.sock{parameters}"

    def may_connect(self, uid: int, group: int) -> bool:
        uri = self.nbd("db", "")
        return run([*become(uid, group), "nbdinfo", "--size", uri], ok=False).code == 0

    def operate(self, uid: int, group: int, *words: object) -> Result:
        forebay = self.daemon.forebay
        return run([*become(uid, group), forebay.binary, *map(str, words)], ok=False, env=forebay.env)


@pytest.fixture
def world(daemon: Daemon, root: None) -> World:
    del root
    need("setpriv", "nbdinfo")
    return World(daemon)


def test_sockets_have_the_permissions_of_their_exports(world: World) -> None:
    daemon, nbd, guest = world.daemon, world.folder / "nbd.sock", world.folder / "vm.sock"
    world.configure(
        db=[world.nbd("db", f"&group={CLIENTS}"), f"vhost-user:{guest}?mode=0600&user={SOMEBODY}&group={CLIENTS}"],
        mail=[world.nbd("mail", f"&group={CLIENTS}")],
    )
    daemon.start()
    assert permissions(nbd) == (0o660, os.getuid(), CLIENTS)
    assert permissions(guest) == (0o600, SOMEBODY, CLIENTS)
    assert world.may_connect(SOMEBODY, CLIENTS)
    assert not world.may_connect(SOMEBODY, ADMINS)
    shown = daemon.volume("db")["exports"]
    assert not any("group=" in uri for uri in shown), f"clients do not need this: {shown}"

    # What is served is not changed under its clients; a start does it.
    world.configure(db=[world.nbd("db", "&mode=0666")], mail=[world.nbd("mail", "&mode=0666")])
    warned = daemon.forebay("config", "check", daemon.config_path)
    check("config.insecure", warned.messages or parse(warned.stderr), ["db"], "a socket for everybody")
    daemon("reload", ok=False)
    assert permissions(nbd) == (0o660, os.getuid(), CLIENTS)
    daemon.restart()
    assert permissions(nbd) == (0o666, os.getuid(), os.getgid())
    assert world.may_connect(SOMEBODY, ADMINS)
    daemon.stop()
    assert not nbd.exists()


def test_exports_of_one_socket_have_the_same_permissions(world: World) -> None:
    daemon = world.daemon
    world.configure(db=[world.nbd("db", f"&group={CLIENTS}")], mail=[world.nbd("mail", "")])
    daemon.refused("config.conflict", "config", "check", daemon.config_path, mentions=["nbd.sock", "permissions"])
    del world.volumes["mail"]
    world.configure()
    daemon.start()
    sparse(world.folder / "mail.img", 16 * MIB)
    attach = ["volume", "attach", "mail", "--backing", world.folder / "mail.img", "--export"]
    daemon.refused("config.conflict", *attach, world.nbd("mail", ""), code=2, mentions=["nbd.sock"])
    daemon(*attach, world.nbd("mail", f"&group={CLIENTS}"))
    assert permissions(world.folder / "nbd.sock") == (0o660, os.getuid(), CLIENTS)
    daemon.stop()


def test_groups_that_are_not_there(world: World) -> None:
    daemon = world.daemon
    world.configure(db=[world.nbd("db", "")])
    daemon.start()
    sparse(world.folder / "mail.img", 16 * MIB)
    attach = ["volume", "attach", "mail", "--backing", world.folder / "mail.img", "--export"]
    daemon.refused("export.failed", *attach, world.nbd("mail", "&group=nosuch", "mail"), mentions=["nosuch"])
    assert not (world.folder / "mail.sock").exists() and "mail" not in daemon.volumes()
    daemon(*attach, world.nbd("mail", f"&group={CLIENTS}", "mail"))
    daemon.stop()


def test_admin_socket_has_a_group_of_its_own(world: World) -> None:
    daemon = world.daemon
    world.options = f"admin_group = {ADMINS}\nallowed_paths = ['/dev']"
    world.configure(db=[world.nbd("db", f"&group={CLIENTS}")])
    daemon.start()
    assert permissions(daemon.admin) == (0o660, os.getuid(), ADMINS)
    assert world.operate(SOMEBODY, ADMINS, "status").code == 0
    assert world.operate(SOMEBODY, CLIENTS, "status").code != 0, "who uses a volume may operate"
    assert not world.may_connect(SOMEBODY, ADMINS), "who operates may read the data"
    daemon.stop()
    world.options = "admin_group = 'nosuch'\nallowed_paths = ['/dev']"
    world.configure()
    daemon.refused("api.listen", "serve", "--config", daemon.config_path, mentions=["nosuch"])


def test_daemon_without_rights(world: World) -> None:
    """It gives sockets to its own groups, and says what it lacks for others."""
    daemon = world.daemon
    world.configure(db=[world.nbd("db", f"&mode=0600&group={CLIENTS}")])
    for path in [world.folder, *world.folder.iterdir()]:
        os.chown(path, SOMEBODY, CLIENTS)
    daemon.wrapper = become(SOMEBODY, CLIENTS)
    daemon.start()
    assert permissions(world.folder / "nbd.sock") == (0o600, SOMEBODY, CLIENTS)
    store = sparse(world.folder / "mail.img", 16 * MIB)
    os.chown(store, SOMEBODY, CLIENTS)
    attach = ["volume", "attach", "mail", "--backing", store, "--export"]
    for owner in (f"group={ADMINS}", "user=root"):
        wanted = world.nbd("mail", f"&{owner}", "mail")
        daemon.refused("export.failed", *attach, wanted, mentions=[owner.split("=")[1], "SupplementaryGroups"])
        assert not (world.folder / "mail.sock").exists()
    daemon.stop()


def test_tokens_do_not_lift_the_limit(world: World, free_port: Callable[[], int]) -> None:
    daemon, token, port = world.daemon, world.folder / "token", free_port()
    token.write_text("t" * 40)
    token.chmod(0o600)
    world.options = f"admin_tcp = {{ listen = '127.0.0.1:{port}', token_file = '{token}' }}\nallowed_paths = ['/dev']"
    world.configure(db=[])
    daemon.start()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/volumes",
        json.dumps({"name": "new", "pool": "fast", "backing": str(world.folder / "db.img")}).encode(),
        {"Authorization": f"Bearer {token.read_text()}", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=60)
    with refusal.value as answer:
        assert (answer.code, json.load(answer)["id"]) == (403, "api.path-not-allowed")
    daemon.stop()


def test_operators_name_allowed_paths_only(world: World) -> None:
    daemon, inside, secret = world.daemon, world.folder / "srv", world.folder / "secret"
    inside.mkdir()
    for path in (inside / "new.img", secret):
        sparse(path, 16 * MIB)
    secret.chmod(0o600)
    (inside / "link").symlink_to(secret)
    world.options = f"admin_group = {ADMINS}"
    world.configure(db=[])
    warned = daemon.forebay("config", "check", daemon.config_path)
    check("config.insecure", warned.messages or parse(warned.stderr), ["allowed_paths"], "no limit of paths")
    world.options += f"\nallowed_paths = ['{inside}']"
    world.configure()
    assert "allowed_paths" not in daemon.forebay("config", "check", daemon.config_path).stderr
    daemon.start()

    def refused(*words: object) -> None:
        result = world.operate(SOMEBODY, ADMINS, *words)
        assert result.code == 1, result.describe()
        refusal = check("api.path-not-allowed", parse(result.stderr), [inside], "a path that is not allowed")
        assert "allowed_paths" in refusal.hint

    def there() -> list[Path]:
        """Without what the daemon notes for itself."""
        return sorted(path for path in world.folder.rglob("*") if not path.is_relative_to(daemon.state_dir))

    before = there()
    attach = ["volume", "attach", "new", "--pool", "fast", "--backing"]
    export = world.nbd("new", "", "srv/new")
    for backing in (secret, inside / "link", inside / "../secret"):
        refused(*attach, backing, "--export", export)
    refused(*attach, inside / "new.img", "--export", world.nbd("new", "", "elsewhere"))
    refused(*attach, inside / "new.img", "--export", f"fuse:{world.folder}/mount/new")
    refused("pool", "create", "more", "--device", f"{world.folder}/more.img:64MiB")
    refused("pool", "replace", "fast", "--device", f"{world.folder}/more.img:64MiB")
    refused("volume", "detach", "db", "--save-to", world.folder / "copy.img")
    assert there() == before, "something was made"

    done = world.operate(SOMEBODY, ADMINS, *attach, inside / "new.img", "--export", export)
    assert done.code == 0, done.describe()
    daemon("volume", "detach", "new")
    daemon(*attach, secret, "--export", world.nbd("new", "", "elsewhere"))  # root
    daemon("reload")
    daemon.stop()

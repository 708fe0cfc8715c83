"""A signed folder for apt: a machine that has its key installs and upgrades from it. A folder with another key is
refused, and so is one that was changed after it was signed."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import ROOT, Result, run
from harness.packaged import dpkg_status
from harness.system_root import SystemRoot

OLD, NEW = "0.1.1", "0.1.2"
KEY = "ours@example.org"
APT_FOLDER = ROOT / "packaging/apt-folder"
DPKG_OPTIONS = [
    "-o",
    "Dpkg::Use-Pty=0",
    "-o",
    "Dpkg::Options::=--no-triggers",
    "-o",
    "Dpkg::Options::=--force-unsafe-io",
]


class Gpg:
    """A keyring with two secret keys."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self.env = {**os.environ, "GNUPGHOME": str(home)}
        for name in (KEY, "theirs@example.org"):
            self("--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never")

    def __call__(self, *words: str) -> str:
        return run(["gpg", "--batch", "--quiet", *words], env=self.env).stdout

    def make_folder(self, *words: object, ok: bool = True) -> Result:
        """packaging/apt-folder with these words."""
        return run([APT_FOLDER, *map(str, words)], env=self.env, ok=ok)

    def is_refused(self, code: int, mentions: list[object], *words: object) -> None:
        done = self.make_folder(*words, ok=False)
        assert done.code == code and all(str(value) in done.stderr for value in mentions), done.describe()


@pytest.fixture
def gpg(folder: Path) -> Iterator[Gpg]:
    need("apt-ftparchive", "gpg", "gpgv", "dpkg-deb")
    made = Gpg(folder / "gnupg")
    yield made
    run(["gpgconf", "--kill", "all"], env=made.env, ok=False)


class Machine:
    """A root that installs from the folder /srv/apt in it."""

    def __init__(self, system: SystemRoot, gpg: Gpg) -> None:
        self.system = system
        self.gpg = gpg
        self.folder = system.path("srv/apt")
        self.folder.mkdir(parents=True)
        self.key = system.path("etc/apt/keyrings/forebay.asc")

    def publish(self, package: Path) -> None:
        """packaging/apt-folder puts a package into the folder."""
        self.system.run_outside(APT_FOLDER, "--key", KEY, self.system.at / "srv/apt", package, env=self.gpg.env)

    def use_folder(self) -> None:
        """Has the sources and the key of the folder, and no others."""
        apt = self.system.path("etc/apt")
        (apt / "sources.list").unlink(missing_ok=True)
        for source in (apt / "sources.list.d").iterdir():
            source.unlink()
        lines = (self.folder / "forebay.sources").read_text().splitlines()
        lines = ["URIs: file:/srv/apt" if line.startswith("URIs: ") else line for line in lines]
        (apt / "sources.list.d/forebay.sources").write_text("\n".join(lines) + "\n")
        self.key.parent.mkdir(exist_ok=True)
        shutil.copy(self.folder / "forebay.asc", self.key)

    def apt_get(self, *words: str, ok: bool = True) -> Result:
        return self.system.run("apt-get", "-q", *DPKG_OPTIONS, *words, ok=ok, seconds=300)

    def update(self, *, ok: bool = True) -> Result:
        return self.apt_get("--error-on=any", "update", ok=ok)

    def has(self, version: str) -> None:
        status = self.system.run("dpkg-query", "-W", "-f", "${Status} ${Version}", "forebay").stdout
        assert status == dpkg_status(version)


@pytest.mark.long
@pytest.mark.limit(400)
def test_apt_installs_from_signed_folder(
    gpg: Gpg, make_root: Callable[..., SystemRoot], deb: Callable[[str], Path]
) -> None:
    need("apt-get")
    machine = Machine(make_root(), gpg)
    machine.publish(deb(OLD))
    machine.use_folder()
    machine.update()
    machine.apt_get("--yes", "--no-install-recommends", "install", "forebay")
    machine.has(OLD)
    machine.publish(deb(NEW))
    machine.update()
    machine.apt_get("--yes", "--only-upgrade", "install", "forebay")
    machine.has(NEW)
    assert len(list((machine.folder / "pool").rglob("*.deb"))) == 2, "the older one is gone"

    # Another key.
    machine.key.write_text(gpg("--armor", "--export", "theirs@example.org"))
    refusal = machine.update(ok=False)
    words = refusal.stdout + refusal.stderr
    assert refusal.code != 0 and ("NO_PUBKEY" in words or "not signed" in words), refusal.describe()
    shutil.copy(machine.folder / "forebay.asc", machine.key)
    # Lists that were changed after they were signed.
    shutil.rmtree(machine.system.path("var/lib/apt/lists"))
    main = machine.folder / "dists/stable/main"
    lists = [*main.glob("binary-*/Packages.gz"), *main.glob("binary-*/by-hash/SHA256/*")]
    assert lists
    for path in lists:
        path.write_text("changed\n")
    assert machine.update(ok=False).code != 0, "apt takes a list that was changed after it was signed"
    machine.publish(deb(NEW))
    machine.update()


@pytest.mark.long
def test_apt_folder_refuses_wrong_packages(gpg: Gpg, deb: Callable[[str], Path], folder: Path) -> None:
    target, old, new = folder / "apt", deb(OLD), deb(NEW)
    gpg.make_folder("--key", KEY, target, new)
    gpg.is_refused(1, ["nobody", "GNUPGHOME"], "--key", "nobody", target, new)
    gpg.is_refused(1, [ROOT / "README.md", "make deb"], "--key", KEY, target, ROOT / "README.md")
    # Another package of this version.
    (folder / "other").mkdir()
    other = folder / "other" / new.name
    shutil.copy(old, other)
    gpg.is_refused(1, [target / "pool/main/forebay" / new.name], "--key", KEY, target, other)
    gpg.is_refused(2, ["apt-folder --key"], target)

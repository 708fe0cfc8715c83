"""`make install` puts everything where a system finds it, twice as well, and `make uninstall` takes all of it away."""

import os
import re
from pathlib import Path

import pytest
from harness.clients import is_served, need
from harness.command import BINARY, ROOT, Forebay, Result, run
from harness.daemon import RunVolume
from harness.devices import MIB


class Installation:
    """Into `root`, as a package would be built."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "etc").mkdir(parents=True)

    def make(self, target: str, prefix: str = "/usr") -> Result:
        words = [f"FOREBAY={BINARY}", f"DESTDIR={self.root}", f"PREFIX={prefix}"]
        return run(["make", "--no-print-directory", "-C", ROOT, target, *words])

    def script(self, **env: object) -> Result:
        """scripts/install itself, which may refuse."""
        words = {"DESTDIR": self.root, "PREFIX": "/usr", "FOREBAY": BINARY, **env}
        return run([ROOT / "scripts/install"], ok=False, env={**os.environ, **{k: str(v) for k, v in words.items()}})


@pytest.fixture
def empty(folder: Path) -> Installation:
    return Installation(folder / "root")


@pytest.fixture
def installed(empty: Installation) -> Installation:
    said = empty.make("install")
    assert str(empty.root) in said.stdout + said.stderr, said.describe()
    return empty


def test_program_that_runs_is_replaced(installed: Installation, volume: RunVolume) -> None:
    need("nbdinfo")
    volume.make_backing(16 * MIB)
    volume.forebay = Forebay(volume.folder, binary=installed.root / "usr/bin/forebay")
    volume.start()
    installed.make("install")
    assert is_served(volume.uri) == 16 * MIB
    volume.stop()


def test_program_pages_and_completions(installed: Installation, folder: Path) -> None:
    need("man", "bash")
    usr = installed.root / "usr"
    forebay = Forebay(folder, binary=usr / "bin/forebay")
    forebay("--version")
    pages = ["man1/forebay.1", "man1/forebay-volume-attach.1", "man5/forebay.toml.5"]
    pages += sorted(str(page.relative_to(usr / "share/man")) for page in (usr / "share/man/man7").iterdir())
    assert "man7/forebay.7" in pages and "man7/forebay-disk-died.7" in pages
    for page in pages:
        shown = run(["man", "--warnings", "-l", usr / "share/man" / page])
        assert shown.stderr == "" and "NAME" in shown.stdout, f"{page}: {shown.stderr}"
    run(["bash", "-n", usr / "share/bash-completion/completions/forebay"])
    for file in ("zsh/site-functions/_forebay", "fish/vendor_completions.d/forebay.fish"):
        assert (usr / "share" / file).stat().st_size > 0, file
    example = folder / "forebay.toml"
    example.write_bytes((usr / "share/doc/forebay/forebay.example.toml").read_bytes())
    forebay("config", "check", example)


def test_unit_user_and_folders(installed: Installation, folder: Path) -> None:
    need("systemd-analyze", "systemd-sysusers", "systemd-tmpfiles")
    root = installed.root
    Forebay(folder, binary=root / "usr/bin/forebay")("config", "check", root / "etc/forebay/forebay.toml")
    run(["systemd-sysusers", f"--root={root}"])
    assert re.search("^forebay:", (root / "etc/passwd").read_text(), re.M), "there is no user"
    run(["systemd-tmpfiles", f"--root={root}", "--create", "forebay.conf"])
    modes = {name: (root / name).stat().st_mode & 0o7777 for name in ("etc/forebay", "etc/forebay-keys")}
    assert modes == {"etc/forebay": 0o750, "etc/forebay-keys": 0o700}

    # The guide about the boot has the same drop-in as the package.
    guide = (ROOT / "docs/operate/boot.md").read_text()
    shown = re.search(r"^(# [^\n]*ublk\.conf\n.*?)^```$", guide, re.M | re.S)
    assert shown, "docs/operate/boot.md does not show the drop-in"
    assert shown[1].split("\n", 1)[1] == (root / "usr/share/forebay/ublk.conf").read_text()
    unit = (root / "usr/lib/systemd/system/forebay.service").read_text()
    assert re.search("^ExecStart=/usr/bin/forebay serve", unit, re.M), unit


def test_uninstall_leaves_the_configuration(installed: Installation) -> None:
    config = installed.root / "etc/forebay/forebay.toml"
    with config.open("a") as file:
        file.write("# mine\n")
    installed.make("install")
    installed.make("uninstall")
    places = [installed.root / "usr", installed.root / "etc/needrestart"]
    left = [path for place in places for path in place.rglob("*") if not path.is_dir() or path.is_symlink()]
    assert left == []
    assert config.read_text().endswith("# mine\n")


def test_another_prefix(empty: Installation) -> None:
    empty.make("install", "/opt/forebay")
    lib = empty.root / "opt/forebay/lib"
    unit = (lib / "systemd/system/forebay.service").read_text()
    assert re.search("^ExecStart=/opt/forebay/bin/forebay serve", unit, re.M), unit
    rules = (lib / "udev/rules.d/61-forebay.rules").read_text()
    assert 'IMPORT{program}="/opt/forebay/bin/forebay inspect' in rules, rules


def test_what_cannot_be_installed(empty: Installation, folder: Path) -> None:
    refused = empty.script(FOREBAY=folder / "none")
    assert refused.code == 1, refused.describe()
    assert f"{folder}/none" in refused.stderr and "make build" in refused.stderr, refused.describe()
    refused = empty.script(PREFIX="usr")
    assert refused.code == 1 and "PREFIX=/usr" in refused.stderr, refused.describe()
    assert list(empty.root.rglob("*")) == [empty.root / "etc"]

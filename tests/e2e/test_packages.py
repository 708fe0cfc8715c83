"""Packages: they are what `make install` installs, the same bytes wherever they are made, and right for lintian and
rpmlint. What scripts/install and scripts/package cannot do they say, and leave things as they were."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import BINARY, ROOT, Result, run
from harness.devices import Devices, assert_same
from harness.packages import HOMEPAGE, MAINTAINER, make_packages, package_environment, strip
from harness.system_root import SystemRoot

VERSION = "0.1.1"
DOC = "/usr/share/doc/forebay"
CONFIG = "/etc/forebay/forebay.toml"


def install_into(tree: Path, program: Path, *, ok: bool = True) -> Result:
    env = {**os.environ, "FOREBAY": str(program), "DESTDIR": str(tree), "PREFIX": "/usr"}
    return run([ROOT / "scripts/install"], env=env, ok=ok)


def files_in(tree: Path) -> set[str]:
    return {f"/{path.relative_to(tree)}" for path in tree.rglob("*") if not path.is_dir() or path.is_symlink()}


def installed(tree: Path, program: Path) -> set[str]:
    """The files that scripts/install makes, with manual pages compressed."""
    install_into(tree, program)
    return {f"{name}.gz" if "/share/man/" in name else name for name in files_in(tree)}


def renamed(names: set[str], changes: dict[str, str]) -> set[str]:
    assert set(changes) <= names, f"not installed: {set(changes) - names}"
    return {changes.get(name, name) for name in names}


def is_the_same_elsewhere(folder: Path, kind: str, first: Path) -> None:
    """The same bytes come out of another folder, at another time, with another umask."""
    elsewhere = folder / "elsewhere"
    for name in ("scripts", "packaging", "docs/use", "docs/operate"):
        shutil.copytree(ROOT / name, elsewhere / name)
    for name in ("Cargo.toml", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, elsewhere / name)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    command = [elsewhere / "scripts/package", "--quick", "--to", folder / "two", kind]
    env = package_environment(VERSION, BINARY, {"TZ": "Pacific/Auckland"})
    run(["sh", "-c", 'umask 077; exec "$@"', "sh", *command], env=env, seconds=300)
    assert_same(first, folder / "two" / first.name, "of packages made twice")


@pytest.mark.limit(400)
def test_debian_package_is_right(folder: Path) -> None:
    need("dpkg-deb")
    (deb,) = make_packages(folder / "one", VERSION, "deb")
    is_the_same_elsewhere(folder, "deb", deb)
    run(["dpkg-deb", "--extract", deb, folder / "unpacked"])
    documents = {f"{DOC}/CHANGELOG.md": f"{DOC}/changelog.gz", f"{DOC}/LICENSE": f"{DOC}/copyright"}
    more = {f"{DOC}/changelog.Debian.gz", "/usr/share/lintian/overrides/forebay"}
    expected = renamed(installed(folder / "tree", folder / "unpacked/usr/bin/forebay"), documents) | more
    assert files_in(folder / "unpacked") == expected


def contact_of(checkout: Path, folder: Path, **env: str) -> tuple[str, str]:
    """Maintainer and homepage of a package made in a checkout by a user who has configured nothing for git."""
    program = folder / "program"
    run(["objcopy", "--remove-section", ".gnu_debuglink", shutil.which("true") or "/bin/true", program])
    clean = {**package_environment(VERSION, program), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    del clean["MAINTAINER"], clean["HOMEPAGE"]
    command = [checkout / "scripts/package", "--quick", "--to", folder / "made", "dbgsym"]
    made = run(command, env={**clean, **env}).stdout.strip()
    maintainer, homepage = (run(["dpkg-deb", "-f", made, field]).stdout.strip() for field in ("Maintainer", "Homepage"))
    return maintainer, homepage


def test_contact_is_of_the_build(folder: Path) -> None:
    """By default: the user of git, else the author of the last commit; and the page of `origin`."""
    need("dpkg-deb", "git", "objcopy")
    checkout = folder / "checkout"
    for name in ("scripts", "packaging"):
        shutil.copytree(ROOT / name, checkout / name)
    shutil.copy(ROOT / "Cargo.toml", checkout)

    def git(*arguments: str) -> None:
        run(["git", "-C", checkout, *arguments])

    git("init", "--quiet")
    git(
        "-c",
        "user.name=Ann Author",
        "-c",
        "user.email=ann@example.org",
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "x",
    )
    assert contact_of(checkout, folder) == ("Ann Author <ann@example.org>", "")
    git("config", "user.name", "Bob Builder")
    git("config", "user.email", "bob@example.org")
    git("remote", "add", "origin", "/srv/git/forebay.git")
    assert contact_of(checkout, folder) == ("Bob Builder <bob@example.org>", ""), "a folder is no page"
    for url in (
        "git@git.example.org:team/forebay.git",
        "ssh://git@git.example.org:2222/team/forebay",
        "https://bob:secret@git.example.org/team/forebay.git/",
    ):
        git("remote", "set-url", "origin", url)
        assert contact_of(checkout, folder)[1] == "https://git.example.org/team/forebay", url
    assert contact_of(checkout, folder, MAINTAINER=MAINTAINER, HOMEPAGE=HOMEPAGE) == (MAINTAINER, HOMEPAGE)
    assert contact_of(checkout, folder, HOMEPAGE="")[1] == "", "none is a choice"


@pytest.mark.heavy
@pytest.mark.limit(600)
@pytest.mark.long
def test_lintian_finds_nothing(folder: Path) -> None:
    need("dpkg-deb", "lintian")
    (deb,) = make_packages(folder, VERSION, "deb")
    run(["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", deb], seconds=500)


@pytest.mark.long
@pytest.mark.limit(400)
def test_rpm_package_is_right(folder: Path) -> None:
    need("rpmbuild", "rpmlint", "rpm")
    (rpm,) = make_packages(folder / "one", VERSION, "rpm")
    is_the_same_elsewhere(folder, "rpm", rpm)
    expected = renamed(installed(folder / "tree", BINARY), {f"{DOC}/LICENSE": "/usr/share/licenses/forebay/LICENSE"})
    listed = set(run(["rpm", "-qp", "--nosignature", "-l", rpm]).stdout.split())
    assert listed - {"/etc/forebay"} == expected
    kept = run(["rpm", "-qp", "--nosignature", "-c", rpm]).stdout.splitlines()
    assert CONFIG in kept, "RPM would replace a configuration"
    lint = run(["rpmlint", "-c", ROOT / "packaging/rpmlint.toml", rpm], seconds=300)
    contact = run(["rpm", "-qp", "--nosignature", "--qf", "%{PACKAGER} %{URL}", rpm]).stdout
    assert contact == f"{MAINTAINER} {HOMEPAGE}", contact
    assert " 0 errors, 0 warnings" in lint.stdout + lint.stderr, lint.describe()


@pytest.mark.long
def test_rpm_keeps_configuration(make_root: Callable[..., SystemRoot], folder: Path) -> None:
    """Installed, upgraded and removed."""
    need("rpmbuild", "rpm")
    program = strip(folder)
    (old,), (new,) = (make_packages(folder / v, v, "rpm", program=program) for v in (VERSION, "0.1.2"))
    system = make_root()
    system.run("rpm", "-i", "--nodeps", "--nosignature", old)
    config = system.path(CONFIG)
    config.write_text(config.read_text() + "# mine\n")
    system.run("rpm", "-U", "--nodeps", "--nosignature", new)
    assert "# mine" in config.read_text().splitlines(), "an upgrade replaced the configuration"
    system.run("forebay", "--version")
    system.run("rpm", "-e", "forebay")
    assert not system.path("usr/bin/forebay").exists()


def test_install_keeps_old_program_on_full_disk(devices: Devices, folder: Path, root: None) -> None:
    """What was installed stays whole, and the same command goes on once there is room."""
    del root
    small = devices.tmpfs("small", "1M")
    program, new = small / "usr/bin/forebay", strip(folder)
    program.parent.mkdir(parents=True)
    shutil.copy(shutil.which("true") or "/bin/true", program)
    refusal = install_into(small, new, ok=False)
    assert refusal.code == 1 and "bin/forebay" in refusal.stderr and "hint: " in refusal.stderr, refusal.describe()
    run([program])
    assert files_in(small) == {"/usr/bin/forebay"}, "half of a file is left"
    run(["mount", "-o", "remount,size=1G", small])
    install_into(small, new)
    assert_same(new, program, "of the program")


def test_package_needs_program_and_version(folder: Path) -> None:
    def refused(code: int, *words: str, kind: str = "deb", **env: str) -> None:
        done = run([ROOT / "scripts/package", kind], env={**os.environ, "FOREBAY": str(BINARY), **env}, ok=False)
        assert done.code == code and all(word in done.stderr for word in words), done.describe()

    refused(1, str(folder / "none"), "make build", FOREBAY=str(folder / "none"))
    refused(1, "-1", "VERSION=", VERSION="-1")
    refused(1, "Ada", "MAINTAINER=", MAINTAINER="Ada")
    refused(1, "example", "HOMEPAGE=", HOMEPAGE="example")
    refused(2, "deb|dbgsym|rpm", kind="tar")

"""Packages of the program under test, made by scripts/package."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from .command import BINARY, ROOT, run

MAINTAINER = "Ada Admin <ada@example.org>"
HOMEPAGE = "https://example.org/forebay"
# A program without what is for debuggers is packed much faster.
STRIPPED = "forebay"


def package_environment(version: str, program: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    fixed = {"VERSION": version, "SOURCE_DATE_EPOCH": "1700000000", "FOREBAY": str(program)}
    contact = {"MAINTAINER": MAINTAINER, "HOMEPAGE": HOMEPAGE}
    return {**os.environ, **fixed, **contact, **(more or {})}


def make_packages(
    to: Path,
    version: str,
    *kinds: str,
    program: Path = BINARY,
    checkout: Path = ROOT,
    env: Mapping[str, str] | None = None,
) -> list[Path]:
    """Runs scripts/package; the packages that it has made."""
    command = [checkout / "scripts/package", "--quick", "--to", to, *kinds]
    done = run(command, env=package_environment(version, program, env), seconds=300)
    return [Path(line) for line in done.stdout.splitlines()]


def strip(to: Path) -> Path:
    """The program under test without what is for debuggers."""
    program = to / STRIPPED
    if run(["strip", "-o", program, BINARY], ok=False).code != 0:
        shutil.copy(BINARY, program)
    return program


@pytest.fixture(scope="session")
def made_debs() -> Iterator[Callable[[str], Path]]:
    """Debian packages by their versions; each is made once."""
    at = Path(tempfile.mkdtemp(prefix="forebay-debs."))
    made: dict[str, Path] = {}

    def make(version: str) -> Path:
        program = at / STRIPPED
        if not program.exists():
            strip(at)
        if version not in made:
            (made[version],) = make_packages(at / version, version, "deb", program=program)
        return made[version]

    yield make
    shutil.rmtree(at, ignore_errors=True)


@pytest.fixture
def deb(made_debs: Callable[[str], Path], folder: Path) -> Callable[[str], Path]:
    """`deb("0.1.2")` is a Debian package of this version in the folder of the test."""

    def make(version: str) -> Path:
        return Path(shutil.copy(made_debs(version), folder))

    return make

"""The machine of the guide (docs/operate): a system with Forebay on it, disks and flash that can fail, and a file
system with data. tests/guide/stage.sh makes what happens there by itself. One for all tests of a boot of the guest,
since to make it takes long."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clients import need
from .command import ROOT, Result
from .guest import BOOT
from .system_root import SystemRoot

GUIDE = ROOT / "tests/guide"
PAGES = ROOT / "docs/operate"


class Stage:
    def __init__(self, system: SystemRoot) -> None:
        self.system = system

    def do(self, directions: str, *, ok: bool = True, seconds: float = 120) -> Result:
        """Functions of stage.sh, and other commands of a shell, in the root."""
        return self.system.run("bash", "-ec", f". {GUIDE}/stage.sh; {directions}", ok=ok, seconds=seconds)

    def execute(self, page: Path, seconds: float) -> None:
        """Everything that a page says is so."""
        execute(self.system, page, seconds)


def execute(system: SystemRoot, page: Path, seconds: float) -> None:
    """Executes a page in a root (tests/guide/execute.py): each command, and what it prints."""
    try:
        result = system.run("python3", "-u", GUIDE / "execute.py", page, ok=False, seconds=seconds)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"not done in time; so far:\n{(error.stdout or b'').decode()}") from None
    print(result.stdout)
    assert result.code == 0, f"the page is not as it says:\n{result.stdout}{result.stderr}"


def pages() -> list[Path]:
    """The pages that are executed: they say how they begin."""
    return [page for page in sorted(PAGES.glob("*.md")) if "\n<!-- guide: " in page.read_text()]


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The machine as the test before has left it; pages and tests begin with what they need."""
    need("dmsetup", "fio", "mkfs.ext4", "setpriv", "mariadbd", "blkid")
    system = SystemRoot(Path(tempfile.mkdtemp(prefix="forebay-e2e.")), devices=True)
    system.install()
    yield Stage(system)
    if BOOT:
        system.let_go()
    else:
        Stage(system).do("stop_all", ok=False)
        system.clean_up()

"""Fixtures and rules of the end-to-end tests. `scripts/e2e` runs them; harness/ has what they use.

A test is a function `test_BEHAVIOUR`. It gets what it needs as fixtures, and marks say what it costs:

- `heavy`: it keeps a processor busy, so fewer tests run beside it (harness/slots.py)
- `alone`: nothing runs beside it
- `limit(seconds)`: it may take longer than LIMIT_SECONDS
- `xdist_group("guest")`: it boots guests of its own, and no other test has one meanwhile
- `guest(boot)`: it runs in a guest, with all tests of the same boot (harness/guest.py)
- `long`: not part of `make test`, but of `make test-all`

A skip is a failure where CI=true, unless tests/e2e/skips-allowed names the test."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.command import BINARY, Forebay
from harness.daemon import Daemon, RunVolume
from harness.devices import Devices
from harness.ports import Ports
from harness.process import end_below
from harness.slots import SLOTS, one_guest, slots
from harness.waiting import SLOWNESS

pytest_plugins = [
    "harness.reporting",
    "harness.guest",
    "harness.driven_guest",
    "harness.packages",
    "harness.system_root",
    "harness.stage",
]

LIMIT_SECONDS = 200


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "heavy: keeps a processor busy",
        "alone: nothing else may run beside it",
        "limit(seconds): may take longer than other tests",
        "guest(boot): runs in a guest, with all tests of the same boot",
        "long: only part of `make test-all`",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A limit for each test; the longest first, so that none is left over at the end."""
    del config
    for item in items:
        mark = item.get_closest_marker("limit")
        seconds = mark.args[0] if mark else LIMIT_SECONDS
        # Fixtures are not timed: they wait for slots. What they start has limits of its own.
        item.add_marker(pytest.mark.timeout(seconds * SLOWNESS, func_only=True))


@pytest.fixture(autouse=True)
def _slot(request: pytest.FixtureRequest) -> Iterator[None]:
    """Waits for its turn."""
    node = request.node
    wanted = SLOTS if node.get_closest_marker("alone") else 2 if node.get_closest_marker("heavy") else 1
    group = node.get_closest_marker("xdist_group")
    boots = group is not None and group.args[0] == "guest"
    with one_guest() if boots else contextlib.nullcontext(), slots(wanted):
        yield


@pytest.fixture
def folder(_slot: None) -> Iterator[Path]:
    """A private folder with a short path, since those of unix sockets are short. KEEP=1 keeps it."""
    assert BINARY.exists(), f"no binary at {BINARY}: build it with `make build-tests`, or set FOREBAY"
    path = Path(tempfile.mkdtemp(prefix="forebay-e2e."))
    yield path
    end_below(path)
    if os.environ.get("KEEP"):
        print(f"kept: {path}")
    else:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def devices(folder: Path) -> Iterator[Devices]:
    """Loop devices, mounts and the like, which are gone at the end."""
    made = Devices(folder)
    yield made
    made.clean_up()


@pytest.fixture
def make_daemon(folder: Path, devices: Devices) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons (`make_daemon("name")`), which are killed at the end, before their devices are taken away."""
    del devices
    made: list[Daemon] = []

    def make(name: str = "daemon", at: Path | None = None) -> Daemon:
        made.append(Daemon(at or folder, name))
        return made[-1]

    yield make
    for daemon in made:
        daemon.clean_up()


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that is not yet configured and started."""
    return make_daemon()


@pytest.fixture
def make_volume(folder: Path, devices: Devices) -> Iterator[Callable[..., RunVolume]]:
    """Makes volumes of `forebay run`, which are killed at the end."""
    del devices
    made: list[RunVolume] = []

    def make(name: str = "run", cache_size: str = "64MiB", at: Path | None = None) -> RunVolume:
        made.append(RunVolume(at or folder, name, cache_size))
        return made[-1]

    yield make
    for volume in made:
        volume.clean_up()


@pytest.fixture
def volume(make_volume: Callable[..., RunVolume]) -> RunVolume:
    """`forebay run` that is not yet started: its backing store is to be made first."""
    return make_volume()


@pytest.fixture
def forebay(folder: Path) -> Forebay:
    """The command line without a daemon."""
    return Forebay(folder)


@pytest.fixture
def ports() -> Iterator[Ports]:
    taken = Ports()
    yield taken
    taken.clean_up()


@pytest.fixture
def free_port(ports: Ports) -> Callable[[], int]:
    """A TCP port that no other test gets."""
    return ports.free


@pytest.fixture
def root() -> None:
    """The test needs root."""
    if os.geteuid() != 0:
        pytest.skip("this test needs root")


@pytest.fixture
def fuse(root: None) -> None:
    """The test needs /dev/fuse, and root to mount."""
    del root
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")

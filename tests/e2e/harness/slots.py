"""Which tests run beside each other. Workers of pytest take slots; files with locks are what they share.

A test that mostly waits takes one slot of `E2E_SLOTS`, one that keeps a processor busy (`@pytest.mark.heavy`) takes
two, one that needs the machine to itself (`@pytest.mark.alone`) takes all. Those who wait are served in their order,
so a test that needs many is not overtaken for ever."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SLOTS = int(os.environ.get("E2E_SLOTS", 4 * (os.cpu_count() or 1)))


@contextlib.contextmanager
def slots(wanted: int, folder: Path | None = None) -> Iterator[None]:
    """Holds so many slots; waits for them."""
    folder = folder or Path(tempfile.gettempdir()) / f"forebay-e2e-slots.{os.getuid()}"
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        with (folder / "queue").open("w") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            missing = min(wanted, SLOTS)
            files = [held.enter_context((folder / f"slot-{at}").open("w")) for at in range(SLOTS)]
            while missing:
                for file in list(files):
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        files.remove(file)
                        missing -= 1
                    if not missing:
                        break
                else:
                    time.sleep(0.05)
        yield


@contextlib.contextmanager
def one_guest() -> Iterator[None]:
    """Waits until no other test has a guest. Slots are taken afterwards."""
    with (Path(tempfile.gettempdir()) / f"forebay-e2e-guest.{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""What a row has mounted is gone after it, however it ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from forebay_lab import binaries
from forebay_lab.experiment import Binary, Refused, Work
from forebay_lab.ledger import Entry, Ledger
from forebay_lab.stack import Backend, Mounted, Store, finish, format_image, mounted, needs

MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts"),
    pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="there is no loop driver here"),
]


def built(store: Store) -> object:
    """The stores that need a program of ours are left out where it is not built."""
    binary = {Store.RAW: None, Store.FLASHCACHE: Binary.MODEL}.get(store, Binary.FOREBAY)
    missing = [command for command in needs(store) if not shutil.which(command)]
    if binary is not None and not binaries.path(binary).exists():
        missing.append(binary.value)
    return pytest.param(store, marks=pytest.mark.skipif(bool(missing), reason=f"there is no {', '.join(missing)}"))


def left_of(folder: Path) -> list[str]:
    """Loop devices and mounts of a folder; what others on this machine do does not matter."""
    devices = subprocess.run(["losetup", "-a"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in (*devices, *Path("/proc/mounts").read_text().splitlines()) if str(folder) in line]


def wait_until_counted(there: Mounted) -> None:
    """The model says once a second what it did."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        gauges = there.gauges()
        if gauges.get("dirty_mib", 0) > 0 and gauges["asked_blocks"] >= gauges["found_blocks"] > 0:
            assert gauges["flash_written_mib"] >= gauges["dirty_mib"]
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing was counted: {there.gauges()}")


@pytest.mark.parametrize("store", [built(store) for store in Store])
def test_content_arrives_and_a_failure_leaves_nothing(tmp_path: Path, store: Store) -> None:
    backend = Backend(store, cache_mib=256)
    image = tmp_path / "row/image"
    image.parent.mkdir()
    with Ledger(tmp_path / "ledger") as ledger:
        work = Work(tmp_path / "row", tmp_path, ledger, lambda _: None)
        format_image(image, 384, "xfs", work)
        with mounted(backend, image, work) as there:
            (there.path / "file").write_bytes(b"written through what is measured" * 4096)
            os.sync()
            if store in (Store.FOREBAY, Store.FLASHCACHE):
                wait_until_counted(there)
        finish(backend, image, work)
        with mounted(Backend(Store.RAW), image, work) as there:
            assert (there.path / "file").read_bytes() == b"written through what is measured" * 4096
    assert left_of(tmp_path) == []
    with (
        pytest.raises(ZeroDivisionError),
        Ledger(tmp_path / "ledger") as ledger,
        mounted(backend, image, Work(tmp_path / "row", tmp_path, ledger, lambda _: None)),
    ):
        raise ZeroDivisionError
    assert left_of(tmp_path) == []


def wait_until_unreachable(path: Path) -> None:
    """The kernel remembers for a while what a folder looked like."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            path.stat()
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} can still be reached")


@pytest.mark.parametrize("store", [built(store) for store in (Store.DISK, Store.FOREBAY, Store.FLASHCACHE)])
def test_a_killed_server_is_told_and_leaves_nothing(tmp_path: Path, store: Store) -> None:
    row = tmp_path / "a row"
    image = row / "image"
    with pytest.raises(Refused), Ledger(tmp_path / "ledger") as ledger:
        ledger.add(Entry("folder", str(row)))
        row.mkdir()
        work = Work(row, tmp_path, ledger, lambda _: None)
        format_image(image, 384, "xfs", work)
        with mounted(Backend(store, cache_mib=256), image, work) as there:
            (there.path / "file").write_bytes(b"acknowledged, not durable" * 4096)
            for pid in there.pids:
                os.kill(pid, signal.SIGKILL)
            wait_until_unreachable(row / "export")
    assert left_of(tmp_path) == []
    assert not row.exists() and list((tmp_path / "ledger").iterdir()) == []

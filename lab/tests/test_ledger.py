"""Whatever happens to the lab, what it made can be undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forebay_lab.ledger import Entry, Ledger, end, left_behind, started, undo_all


def test_what_was_made_is_undone_in_reverse(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.add(Entry("folder", str(tmp_path / "work")))
        (tmp_path / "work").mkdir()
        ledger.add(Entry("file", str(tmp_path / "work/image")))
        (tmp_path / "work/image").write_text("x")
        child = subprocess.Popen(["sleep", "60"])
        ledger.add_process(child.pid)
    assert not (tmp_path / "work").exists()
    assert child.wait() == -signal.SIGTERM
    assert list((tmp_path / "ledger").iterdir()) == []


def test_what_was_never_made_is_no_error() -> None:
    entries = [
        Entry("folder", "/nonexistent/a"),
        Entry("file", "/nonexistent/b"),
        Entry("mount", "/nonexistent/c"),
        Entry("process", pid=2**22 + 1, started=5),
    ]
    assert undo_all(entries) == []


def test_a_process_number_that_was_given_away_again_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        end(child.pid, started(child.pid) + 1)
        end(child.pid, 0)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


KILLED = """
import os, sys, time
from pathlib import Path
from forebay_lab.ledger import Entry, Ledger
import subprocess
base = Path(sys.argv[1])
ledger = Ledger(base / "ledger")
ledger.add(Entry("folder", str(base / "work")))
(base / "work").mkdir()
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
ledger.add_process(child.pid)
with ledger.path.open("a") as file:
    file.write('{"kind": "fol')  # torn by the kill
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_lab_is_cleaned_up_after_and_a_running_one_is_not(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    lab = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert lab.stdout is not None
    child = int(lab.stdout.readline())
    (running,) = left_behind(tmp_path / "ledger")
    assert running.running
    lab.send_signal(signal.SIGKILL)
    lab.wait()
    (left,) = left_behind(tmp_path / "ledger")
    assert not left.running and [entry.kind for entry in left.entries] == ["folder", "process"]
    assert undo_all(left.entries) == []
    assert not (tmp_path / "work").exists()
    deadline = time.monotonic() + 10
    while started(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert started(child) == 0


ENDED = """
import subprocess, sys, time
from pathlib import Path
from forebay_lab.cli import end_in_order
from forebay_lab.ledger import Entry, Ledger
end_in_order()
base = Path(sys.argv[1])
with Ledger(base / "ledger") as ledger:
    ledger.add(Entry("folder", str(base / "work")))
    (base / "work").mkdir()
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    ledger.add_process(child.pid)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_lab_that_is_asked_to_end_undoes_everything(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    lab = subprocess.Popen(
        [sys.executable, "-c", ENDED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert lab.stdout is not None
    child = int(lab.stdout.readline())
    lab.send_signal(number)
    assert lab.wait(60) == 128 + number
    assert started(child) == 0
    assert not (tmp_path / "work").exists() and list((tmp_path / "ledger").iterdir()) == []


def test_the_ledger_of_a_row_comes_before_that_of_its_run(tmp_path: Path) -> None:
    run = Ledger(tmp_path)
    row = Ledger(tmp_path)
    assert [left.path for left in left_behind(tmp_path)] == [row.path, run.path]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_folder_is_not_emptied_through_a_mount_in_it(tmp_path: Path) -> None:
    folder, mount = tmp_path / "work", tmp_path / "work/mnt"
    mount.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "lab", mount], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        (mount / "of somebody else").write_text("x")
        (told,) = undo_all([Entry("folder", str(folder))])
        assert str(mount) in told and (mount / "of somebody else").exists()
    finally:
        subprocess.run(["umount", mount], check=True)
    assert undo_all([Entry("folder", str(folder))]) == [] and not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and loop devices need root")
def test_mounts_and_loop_devices_are_undone(tmp_path: Path) -> None:
    image, mount = tmp_path / "image", tmp_path / "mnt"
    mount.mkdir()
    entries = [Entry("file", str(image)), Entry("loop", str(image)), Entry("mount", str(mount))]
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no loop device here: {mounted.stderr.strip()}")
    assert mount.is_mount()
    assert undo_all(entries) == []
    assert not mount.is_mount() and not image.exists()
    shown = subprocess.run(["losetup", "--associated", image], capture_output=True, text=True, check=False)
    assert shown.stdout == ""

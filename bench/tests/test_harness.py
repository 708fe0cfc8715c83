"""Servers as children: they are waited for, ended, and do not outlive the benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness
from harness import Failure

BENCH = str(Path(harness.__file__).resolve().parent)


def state(pid: int) -> str:
    """The letter that the kernel has for a process; Z for one that is gone, too: nobody may have asked for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_server_that_ends_at_once_is_a_failure_with_its_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such device'); raise SystemExit(3)"]
    with pytest.raises(Failure, match="ended with 3: no such device"):
        harness.start(command, tmp_path / "socket")


def test_a_socket_of_another_server_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "socket").touch()
    with pytest.raises(Failure, match="exists already"):
        harness.start(["sleep", "60"], tmp_path / "socket")


def test_a_paused_server_is_stopped() -> None:
    with harness.process(["sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
    assert child.returncode == -signal.SIGTERM


def test_a_benchmark_that_is_killed_leaves_no_paused_server() -> None:
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import harness\n"
        "with harness.process(['sleep', '60']) as child:\n"
        "    child.send_signal(signal.SIGSTOP)\n    print(child.pid, flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, BENCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        server = int(child.stdout.readline())
        assert state(server) != "Z"
        child.kill()
        child.wait()
    deadline = time.monotonic() + 10
    while state(server) != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    left = state(server)
    if left != "Z":
        os.kill(server, signal.SIGKILL)
    assert left == "Z"


def test_columns_of_a_table_line_up() -> None:
    assert harness.table(["a", "long"], [["wide cell", "1"]]) == (
        "| a         | long |\n|-----------|------|\n| wide cell | 1    |"
    )


def test_what_cannot_be_found_is_said() -> None:
    assert harness.output(["/does/not/exist"]) == "not found"
    assert {"kernel", "cores", "fio", "commit", "forebay"} <= harness.machine().keys()


def test_the_storage_of_a_folder_is_that_of_the_deepest_mount_point() -> None:
    mounts = "/dev/a / ext4 rw 0 0\n/dev/b /srv xfs rw 0 0\n/dev/c /srv/data btrfs rw 0 0\n/dev/d /srv ext4 rw 0 0\n"
    assert harness.storage(Path("/srv/data/x"), mounts) == "btrfs on /dev/c"
    assert harness.storage(Path("/srv/other"), mounts) == "ext4 on /dev/d"
    assert harness.storage(Path("/srvx"), mounts) == "ext4 on /dev/a"
    assert harness.storage(Path("/x"), "/dev/b /srv xfs rw 0 0\n") == "unknown"

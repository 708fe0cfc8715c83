"""The daemon as packaging/forebay.service runs it, as far as that can be had without systemd: another user, no
capability, no way to new privileges, no file of its own open to others; and every system call that it makes is in the
unit's filter."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import BINARY, ROOT, Forebay, run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, assert_same, random_file, sparse
from harness.proc import kill_if_of, status
from harness.tls import Pki

UNIT = ROOT / "packaging/forebay.service"
OWNER, SECOND_GROUP = 4711, 4712
SIZE = 16 * MIB
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
io = "{io}"

[volume.vol]
pool = "fast"
backing = "file:{folder}/vol.img"
exports = ["nbds://127.0.0.1:{port}/vol?tls=lan", "nbd+unix:///vol?socket={folder}/nbd.sock&group={group}"]
"""
PLAIN_USER = ["--reuid", str(OWNER), "--regid", str(OWNER), "--groups", str(SECOND_GROUP), "--no-new-privs"]
NO_CAPABILITIES = ["--bounding-set=-all", "--inh-caps=-all"]


def own_mask() -> None:
    """In the child: its files are not open to others, and its priority is so high that it does not raise it."""
    os.umask(0o077)
    os.setpriority(os.PRIO_PROCESS, 0, -10)


def only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def has_no_privileges(pid: int) -> None:
    assert status(pid, "Uid").split() == [str(OWNER)] * 4
    assert int(status(pid, "CapEff"), 16) == 0
    assert status(pid, "NoNewPrivs") == "1"


def is_used(daemon: Daemon, tls: str) -> None:
    """Clients, and what an operator changes."""
    folder = daemon.folder
    image = random_file(folder / "in", SIZE)
    run(["nbdcopy", "--flush", image, tls])
    run(["nbdcopy", f"nbd+unix:///vol?socket={folder}/nbd.sock", folder / "out"])
    assert_same(image, folder / "out", "through a daemon without privileges")
    daemon("set", "vol", "mode=writethrough")
    daemon("set", "vol", "mode=writeback")
    daemon("reload")
    daemon("volume", "resize", "vol", "8MiB")
    daemon("volume", "resize", "vol", "max")
    daemon("pool", "grow", "fast", "--size", "96MiB")
    daemon("pool", "shrink", "fast", "--size", "64MiB")
    daemon("stats", "vol")


def members(name: str) -> set[str]:
    """A system call, or a group with the groups in it."""
    if not name.startswith("@"):
        return {name}
    listed = run(["systemd-analyze", "syscall-filter", name]).stdout.splitlines()[1:]
    inside = [line.partition("#")[0].strip() for line in listed]
    return {call for word in inside if word for call in members(word)}


def allowed_calls() -> set[str]:
    """The filter of the unit: its lines in their order, groups that are let in, groups that are taken out."""
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.M):
        calls = {call for word in line.removeprefix("~").split() for call in members(word)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    assert len(allowed) > 100, "the filter was not understood"
    return allowed


def calls_of_daemon(trace: Path) -> set[str]:
    """System calls from the moment that the daemon itself runs: what setpriv does before is systemd's business."""
    text = trace.read_text(errors="replace")
    start = re.search(r'execve\("[^"]*forebay".*', text)
    assert start, "the trace was not understood"
    used = set(re.findall(r"^\d* *([a-z0-9_]+)\(", text[start.end() :], re.M))
    assert len(used) > 30, f"the trace was not understood: {used}"
    return used


@pytest.mark.heavy
@pytest.mark.parametrize("io", ["auto", "psync"])
def test_runs_without_privileges(
    daemon: Daemon, devices: Devices, free_port: Callable[[], int], root: None, io: str
) -> None:
    del root
    need("setpriv", "strace", "nbdinfo", "nbdcopy", "openssl", "systemd-analyze")
    folder, port = daemon.folder, free_port()
    pki = Pki(folder / "pki")
    pki.authority()
    pki.certificate("server", "server", "DNS:localhost")
    pki.certificate("client", "alice")
    sparse(folder / "vol.img", SIZE)
    text = CONFIG.format(folder=folder, port=port, io=io, group=SECOND_GROUP)
    daemon.configure(pki.section() + text, f"admin_group = {SECOND_GROUP}")
    # The binary may be in a folder that others cannot enter.
    binary = Path(shutil.copy(BINARY, folder / "forebay"))
    binary.chmod(0o755)
    daemon.forebay = Forebay(folder, admin=daemon.admin, binary=binary)
    run(["chown", "-R", f"{OWNER}:{OWNER}", folder])
    folder.chmod(0o755)

    trace = folder / "trace"
    strace = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=!futex"]
    daemon.wrapper = [*strace, "setpriv", *PLAIN_USER, *NO_CAPABILITIES]
    daemon.start(prepare=own_mask)
    pid = only_child(daemon.pid)
    devices.at_exit(lambda: kill_if_of(folder, pid))  # it would survive its strace
    has_no_privileges(pid)
    for socket in (daemon.admin, folder / "nbd.sock"):
        assert socket.stat().st_gid == SECOND_GROUP, socket
    is_used(daemon, f"nbds://localhost:{port}/vol?tls-certificates={pki / 'alice'}")
    os.kill(pid, 15)
    assert daemon.running.wait() == 0
    assert (folder / "flash.img").stat().st_mode & 0o007 == 0, "others may use the cache"

    missing = calls_of_daemon(trace) - allowed_calls()
    assert not missing, f"not in SystemCallFilter: {missing}"


def test_filter_of_the_unit() -> None:
    need("systemd-analyze")
    allowed = allowed_calls()
    assert {"io_uring_setup", "io_uring_enter", "io_uring_register", "fallocate"} <= allowed
    assert not {"setuid", "mount", "lchown", "keyctl", "ptrace", "init_module"} & allowed


def test_page_has_the_score_of_the_unit() -> None:
    """docs/operate/security.md states what `systemd-analyze security` says."""
    need("systemd-analyze")
    told = run(["systemd-analyze", "security", "--offline=true", "--threshold=100", UNIT]).stdout
    score = re.search(r"exposure level for .*: ([0-9.]+) ", told)
    assert score, told
    page = (ROOT / "docs/operate/security.md").read_text()
    assert re.search(rf"\*\*{re.escape(score[1])}(\*\*| )", page), f"the page states another score than {score[1]}"

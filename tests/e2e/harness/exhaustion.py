"""Limits of a process that are reached while it runs: threads, descriptors, memory."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from .command import run
from .daemon import Served
from .proc import status
from .waiting import eventually

GROUPS = Path("/sys/fs/cgroup")
# Numbers of users from here on are nobody's.
USERS = 1 << 20


class Threads:
    """A group of processes (cgroup) with a limit on its threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def count(self) -> int:
        return int((self.folder / "pids.current").read_text())

    def limit(self, most: int | None) -> None:
        """No further one is made while there are so many, or more: with 1 none at all."""
        (self.folder / "pids.max").write_text("max" if most is None else str(most))

    def enter(self) -> None:
        """In a child, before exec: it and what it starts is in the group."""
        (self.folder / "cgroup.procs").write_text("0")

    def own(self) -> None:
        """To be called when all is there that the daemon uses."""

    def settle(self) -> int:
        """Waits until the number of threads stays, for short ones come and go; the number."""
        seen = [-1, -2, -3]

        def stays() -> bool:
            seen.append(self.count)
            return len(set(seen[-4:])) == 1

        eventually(stays, 30, "the number of threads stays")
        return seen[-1]


class ThreadsOfUser(Threads):
    """The same for the processes of a user that nobody else is (RLIMIT_NPROC), where no group can be made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.user = USERS + os.getpid() % USERS
        self.pid = 0
        self.most: int | None = None

    @property
    def count(self) -> int:
        return sum(len(list((process / "task").iterdir())) for process in self.processes())

    def processes(self) -> list[Path]:
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that has ended meanwhile
                if process.name.isdigit() and process.stat().st_uid == self.user:
                    found.append(process)
        return found

    def limit(self, most: int | None) -> None:
        """Asked for by the user: another one may not, even root, where it lacks CAP_SYS_RESOURCE."""
        self.most = most
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        number = hard if most is None else most
        user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        for process in self.processes():
            run([*user, "prlimit", f"--pid={process.name}", f"--nproc={number}:"])

    def enter(self) -> None:
        limit_now(os.getpid(), resource.RLIMIT_NPROC, self.most)
        os.setgroups([])
        os.setgid(self.user)
        os.setuid(self.user)

    def own(self) -> None:
        """What is in the folder belongs to the user."""
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, self.user, self.user, follow_symlinks=False)


@contextlib.contextmanager
def threads(at: Path) -> Iterator[Threads]:
    """A limit on threads for daemons in this folder: by the controller `pids` of cgroup v2 or v1, or by a user."""
    unified = GROUPS / "cgroup.controllers"
    parent = GROUPS / "pids"
    if unified.exists() and "pids" in unified.read_text().split():
        with contextlib.suppress(OSError):
            (GROUPS / "cgroup.subtree_control").write_text("+pids")
        parent = GROUPS
    group = parent / at.name
    try:
        group.mkdir()
        (group / "pids.max").write_text("max")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield ThreadsOfUser(at)
        return
    try:
        yield Threads(group)
    finally:
        eventually(lambda: removed(group), 30, f"{group} is empty")


def removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def limited(what: int, most: int) -> Callable[[], None]:
    """In a child, before exec: a limit that it cannot raise."""
    return lambda: resource.setrlimit(what, (most, most))


def limit_now(pid: int, what: int, most: int | None) -> None:
    """The soft limit of a process that runs; none but the hard one."""
    _, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (hard if most is None else most if hard < 0 else min(most, hard), hard))


def virtual_bytes(pid: int) -> int:
    return int(status(pid, "VmSize").split()[0]) << 10


def open_files(pid: int) -> int:
    """The first descriptor that is not used: what RLIMIT_NOFILE is compared with."""
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(used) + 1) if number not in used)


def no_panic(served: Served) -> None:
    """Nothing that it told until now is a panic."""
    told = served.running.stderr()
    assert "panicked at" not in told, told


def lacks_memory(served: Served) -> bool:
    """Whether it has ended for want of memory for its heap, or for a thread that has begun. No program can go on
    then: that is a kill."""
    told = served.running.stderr()
    words = ("memory allocation of", "failed to allocate an alternative stack")
    return served.running.popen.poll() == -signal.SIGABRT and any(word in told for word in words)


def ends_in_order(served: Served, seconds: float = 60) -> str:
    """Waits for the end of a start that cannot succeed; the id of what it told last."""
    code = served.running.wait(seconds)
    no_panic(served)
    assert code in (1, 2), f"exit code {code}: {served.running.tail()}"
    errors = [message.id for message in served.messages() if message.severity == "error"]
    assert errors, f"it ended with {code} and told nothing: {served.running.tail()}"
    return errors[-1]

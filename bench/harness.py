"""What the benchmarks share: temporary folders, servers that are started and stopped by pid, the machine, tables.

Everything stays on this machine: files in one temporary folder, unix sockets, bounded run times. What is specific to
fio is in `fio_client`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOREBAY = Path(os.environ.get("FOREBAY", ROOT / "target/release/forebay"))
NULL = Path(os.environ.get("FOREBAY_NULL", FOREBAY.parent / "forebay-null"))
MIB = 1 << 20
GIB = 1 << 30
PR_SET_PDEATHSIG = 1


class Failure(RuntimeError):
    """A server or client did not do what the benchmark needs."""


@contextmanager
def workspace(where: str | Path | None) -> Iterator[Path]:
    """A temporary folder on the disk under test, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=where or os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def process(command: Sequence[str], ready: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server until the block ends; waits for the socket `ready` to appear first."""
    child, log = start(command, ready)
    try:
        yield child
    finally:
        stop(child)
        log.unlink(missing_ok=True)


def start(command: Sequence[str], ready: Path | None) -> tuple[subprocess.Popen[bytes], Path]:
    """Starts a server and waits until it is ready; returns it and the file of what it says.

    What it says goes to a file, not a pipe: a server that talks much must not block because nobody reads.
    """
    if ready is not None and ready.exists():
        raise Failure(f"{ready} exists already: clients would be connected to another server than {command[0]}")
    number, name = tempfile.mkstemp(prefix="server-", suffix=".log", dir=ready.parent if ready else None)
    log = Path(name)
    with os.fdopen(number, "wb") as file:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,  # noqa: PLW1509 (servers are started while there is one thread)
        )
    try:
        wait_for(child, ready, log)
    except BaseException:
        stop(child)
        raise
    return child, log


def end_with_parent() -> None:
    """In a new server: the kernel kills it if the benchmark is killed, so that no paused server is left behind.

    nbdkit changes this at its start; one that was paused then has to be ended by hand.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(child: subprocess.Popen[bytes], ready: Path | None, log: Path, limit_s: float = 120) -> None:
    """Waits until the socket is there."""
    deadline = time.monotonic() + limit_s
    while ready is not None and not ready.exists():
        if child.poll() is not None:
            raise Failure(f"{child.args!r} ended with {child.returncode}: {log.read_text(errors='replace')}")
        if time.monotonic() > deadline:
            raise Failure(f"{child.args!r} did not open {ready} in {limit_s:.0f} s")
        time.sleep(0.02)
    time.sleep(0.1)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ends a server by its pid, in an orderly way if it lets us; one that is paused is woken first."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGCONT)
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def forebay(folder: Path, *, cache: str, mode: str = "writeback", extra: Sequence[str] = ()) -> list[str]:
    """Command line of a daemon on `disk` and `cache` of the folder, socket `forebay.sock`."""
    return [
        str(FOREBAY),
        "run",
        "--new-cache",  # an earlier run may be recorded with the same paths
        "--backing",
        str(folder / "disk"),
        "--cache",
        cache,
        "--export",
        f"nbd+unix:///v?socket={folder}/forebay.sock",
        "--mode",
        mode,
        *extra,
    ]


def environment(folder: str = "bench-venv", requirements: str = "requirements.txt") -> Path:
    """Python of a virtual environment below target/ that has a list of packages; made when it is first needed."""
    path, wanted = ROOT / "target" / folder, ROOT / "bench" / requirements
    python, marker = path / "bin/python", path / "installed"
    if not marker.exists() or marker.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(path)], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([str(python), "-m", "pip", "install", *quiet, "--requirement", str(wanted)], check=True)
        marker.write_text(wanted.read_text())
    return python


def pressure() -> str:
    """CPU pressure of the last ten seconds: how far figures can be trusted."""
    try:
        return Path("/proc/pressure/cpu").read_text().split("avg10=")[1].split()[0] + " %"
    except (OSError, IndexError):
        return "unknown"


def output(command: Sequence[str]) -> str:
    """First line that a command prints, or "not found": for versions, where a failure is no reason to stop."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "not found"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0].strip() if lines else ""


def processor() -> str:
    """Name of the processor as the kernel has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def built() -> str:
    """When the binary was made: a commit alone does not say that it is of that commit."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(FOREBAY.stat().st_mtime))
    except OSError:
        return "not found"


def machine() -> dict[str, str]:
    """What the figures were measured on, and of what."""
    changed = output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"]) not in ("", "not found")
    commit = output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    return {
        "kernel": platform.release(),
        "processor": processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / GIB:.1f}",
        "commit": commit + (" with changes" if changed else ""),
        "forebay": output([str(FOREBAY), "--version"]),
        "binary_built": built(),
        "fio": output(["fio", "--version"]),
        "nbdkit": output(["nbdkit", "--version"]),
        "qemu-nbd": output(["qemu-nbd", "--version"]),
        "libnbd": output(["nbdinfo", "--version"]),
        "python": platform.python_version(),
        "cpu_pressure_avg10": pressure(),
    }


def storage(where: Path, mounts: str | None = None) -> str:
    """File system and device of a folder, as "ext4 on /dev/vda"; `mounts` is the text of /proc/mounts."""
    lines = [line.split() for line in (mounts or Path("/proc/mounts").read_text()).splitlines()]
    inside = [line for line in lines if where.resolve().is_relative_to(line[1])]
    # The deepest mount point, and of several on the same one the last, which hides the others.
    found = max(enumerate(inside), key=lambda pair: (len(pair[1][1]), pair[0]), default=None)
    return f"{found[1][2]} on {found[1][0]}" if found else "unknown"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown whose columns line up."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def between(document: str, begin: str, end: str, text: str) -> str | None:
    """A document with `text` between its lines `begin` and `end`; `None` if it has no such lines in this order."""
    before, found, rest = document.partition(begin)
    _, ended, after = rest.partition(end)
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}" if found and ended else None

"""Booting the user-mode Linux guest for one measurement.

Its two drives are files in memory ($KERNEL_PEERS_STORE, default a folder in /dev/shm): UBD, the guest's disk driver,
cannot bypass the page cache of the host, so a file on a real disk would be cached a second time. Results are left in
$KERNEL_PEERS_DIR/out (default /var/tmp/forebay-kernel-peers). The guest ends by itself, or by its pid when time is up.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BASE = Path(os.environ.get("KERNEL_PEERS_DIR", "/var/tmp/forebay-kernel-peers"))
STORE = Path(os.environ.get("KERNEL_PEERS_STORE", "/dev/shm/forebay-kernel-peers"))
FOREBAY = Path(os.environ.get("FOREBAY", ROOT / "target/release/forebay"))
# seek_min, seek_max, rotation in us, MB/s: about 190 random requests a second one by one, 212 at depth 16.
ARM = "600 3500 3000 160"
# bcache keeps some of the disk for itself. All get the same number of blocks, for fio's zipf over a range that is no
# power of two hits some blocks twice and others never, which is easier for a cache.
SPARE_MIB = 16
# Slowest warm-up that is waited for, and what booting and stopping may take.
WARM_IOPS_MIN = 5_000
OVERHEAD_S = 180


class Failure(RuntimeError):
    """The guest did not do what it should; the message says where to look."""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    mode: str
    job: str
    warm_ios: int
    run_s: int
    flash_mib: int = 1024
    disk_mib: int = 4096  # what is used of it
    processors: int = 2
    memory: str = "1G"
    realtime: bool = False
    settings: tuple[str, ...] = ()
    export: str = "nbd"
    connections: int = 1
    sample: bool = False

    @property
    def warm_s(self) -> int:
        """Time limit of the warm-up."""
        return max(60, self.warm_ios // WARM_IOPS_MIN)

    def environment(self) -> dict[str, str]:
        """Settings of guest/measure."""
        return {
            "MODE": self.mode,
            "JOB": self.job,
            "WARM_IOS": str(self.warm_ios),
            "WARM_S": str(self.warm_s),
            "RUN_S": str(self.run_s),
            "ARM": ARM,
            "SIZE_MIB": str(self.disk_mib),
            "FOREBAY": str(FOREBAY),
            "SET": " ".join(self.settings),
            "EXPORT": self.export,
            "CONNECTIONS": str(self.connections),
            "SAMPLE": "1" if self.sample else "",
        }


@dataclass(frozen=True)
class Run:
    """A guest that has ended: its results, and what the host did meanwhile."""

    out: Path
    wall_s: float
    cpu_pressure_pct: float


def boot(case: Case) -> Run:
    """Runs one measurement to its end.

    Raises Failure if it did not come to a result.
    """
    if case.mode == "forebay" and not FOREBAY.exists():
        raise Failure(f"{FOREBAY} is not there: build it (make build), or name another one with FOREBAY")
    out = BASE / "out" / f"{case.mode}-{case.job}-{case.warm_ios}"
    run = _start(case, out, case.environment(), case.warm_s + case.run_s + OVERHEAD_S)
    code = _text(out / "code")
    if code != "0":
        raise Failure(f"the guest ended with {code or 'nothing'}; see {out}/log and {out}/console")
    return run


def script(path: Path, case: Case) -> str:
    """Runs a script as root in the guest, and returns its output."""
    out = BASE / "out" / "script"
    _start(case, out, {**case.environment(), "SCRIPT": str(path)}, 600)
    return _text(out / "log") + "\n"


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    commands = {
        "commit": ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        "fio": ["fio", "--version"],
        "guest_kernel": [str(BASE / "linux"), "--version"],
        "host_kernel": ["uname", "-r"],
    }
    said = {
        name: subprocess.run(command, capture_output=True, text=True, check=False) for name, command in commands.items()
    }
    return {name: done.stdout.strip() for name, done in said.items()} | {"processors": str(os.cpu_count())}


def _start(case: Case, out: Path, settings: dict[str, str], limit_s: int) -> Run:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "settings").write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items()))
    _drives(case)
    began, stalled_us = time.monotonic(), _stalled_us()
    with (out / "console").open("wb") as console:
        child = subprocess.Popen(
            _command(case, out), stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            env=os.environ | {"TMPDIR": str(STORE)},
        )  # fmt: skip
        try:
            child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"the guest took longer than {limit_s} s; see {out}/log and {out}/console") from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    wall_s = time.monotonic() - began
    return Run(out, wall_s, (_stalled_us() - stalled_us) / 1e4 / wall_s)


def _command(case: Case, out: Path) -> list[str]:
    """The guest's kernel with its command line."""
    return [
        *(["chrt", "--rr", "1"] if case.realtime else []),
        str(BASE / "linux"), f"mem={case.memory}", f"ncpus={case.processors}", "seccomp=on",
        "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={HERE}/guest/init",
        "con0=null,fd:1", "con=null", f"ubd0={STORE}/flash", f"ubd1={STORE}/disk",
        f"PEERS_DIR={HERE}", f"PEERS_OUT={out}",
    ]  # fmt: skip


def _drives(case: Case) -> None:
    """An empty flash, and a disk full of bytes that do not compress; what is on the disk does not matter."""
    STORE.mkdir(parents=True, exist_ok=True)
    flash, disk = STORE / "flash", STORE / "disk"
    flash.unlink(missing_ok=True)
    with flash.open("wb") as file:
        file.truncate(case.flash_mib << 20)
    disk_mib = case.disk_mib + SPARE_MIB
    if not disk.exists() or disk.stat().st_size != disk_mib << 20:
        key = "-K 00112233445566778899aabbccddeeff -iv 00"
        fill = f"head -c {disk_mib}M /dev/zero | openssl enc -aes-128-ctr {key} >{shlex.quote(str(disk))}"
        subprocess.run(["bash", "-c", fill], check=True, stderr=subprocess.DEVNULL)


def _stalled_us() -> int:
    """Time so far in which some task of the host waited for a processor; 0 where the kernel does not count it."""
    try:
        return int(Path("/proc/pressure/cpu").read_text().splitlines()[0].rsplit("total=", 1)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

"""Clients of a volume: fio, qemu-io, nbdinfo and others, run to their end or in the background."""

import functools
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from .command import Result, run
from .nbd import FLUSH, READ, WRITE, Client
from .process import Process


def need(*names: str) -> None:
    """Skips the test where a program is missing: CI counts that as a failure."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for name in names:
        if shutil.which(name, path=path) is None:
            pytest.skip(f"{name} is not installed (scripts/setup installs it)")


@functools.cache
def fio_speaks_nbd() -> bool:
    return re.search(r"^\s*nbd$", run(["fio", "--enghelp"]).stdout, re.M) is not None


def fio_command(name: str, *options: str) -> list[str]:
    """fio with a checksum in each block that it writes, which compares what it reads."""
    base = [f"--name={name}", "--randrepeat=1", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]
    return ["fio", *base, *options]


class Fio:
    """A run of fio that puts a checksum into each block it writes, and compares what it reads."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.report = folder / f"fio-{name}.out"
        command = fio_command(name, f"--output={self.report}", *options)
        self.process = Process(command, folder / f"fio-{name}.err", cwd=folder)

    def succeeds(self, seconds: float = 120) -> str:
        """Waits for its end: no error, no wrong data. Returns its report."""
        code = self.process.wait(seconds)
        text = self.report.read_text(errors="replace") if self.report.exists() else ""
        met = re.search(r"^(verify|crc32c): |err= *[1-9]", text, re.M)
        assert code == 0 and not met, f"fio ended with {code}: {text[-3000:]}{self.process.tail()}"
        return text


def fio(folder: Path, name: str, *options: str, seconds: float = 120) -> str:
    """Runs fio to its end, with verification."""
    return Fio(folder, name, *options).succeeds(seconds)


def fio_nbd(folder: Path, name: str, uri: str, *options: str) -> Fio:
    """fio over NBD, in the background."""
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")
    return Fio(folder, name, "--ioengine=nbd", f"--uri={uri}", *options)


def fio_files(folder: Path, name: str, directory: Path, seconds: float, *options: str) -> Fio:
    """fio on a file system, in the background."""
    return Fio(folder, name, f"--directory={directory}", *fio_on_files(seconds), *options)


def fio_on_files(seconds: float) -> list[str]:
    """Random writes of random sizes that are read back, with FLUSHes among them."""
    shape = ["--size=24M", "--rw=randwrite", "--bsrange=512-64k", "--blockalign=512", "--ioengine=io_uring"]
    time_based = ["--iodepth=16", "--time_based", f"--runtime={seconds}", "--randrepeat=0"]
    return [*shape, "--direct=1", "--fsync=64", "--verify_backlog=256", *time_based]


def qemu_io(uri: str | Path, *commands: str, ok: bool = True) -> Result:
    """qemu-io on a raw image or NBD URI; an error of a command or a failed comparison is a failure."""
    words = [word for command in commands for word in ("-c", command)]
    result = run(["qemu-io", "-f", "raw", *words, str(uri)], ok=False)
    if ok:
        failed = "verification failed" in result.stdout or " failed: " in result.stdout + result.stderr
        assert result.code == 0 and not failed, result.describe()
    return result


def write_pattern(uri: str | Path, byte: int, offset: str, length: str, *, flush: bool = True) -> None:
    qemu_io(uri, f"write -P {byte} {offset} {length}", *(["flush"] if flush else []))


def has_pattern(uri: str | Path, byte: int, offset: str, length: str) -> None:
    qemu_io(uri, f"read -P {byte} {offset} {length}")


def is_served(uri: str) -> int:
    """A new client can connect; the size of the export."""
    return int(run(["nbdinfo", "--size", uri], seconds=20).stdout)


def nbd_call_all(client: Client, requests: Iterable[tuple[int, int, int, bytes]]) -> None:
    """Requests one after the other, each of which must succeed."""
    for kind, offset, length, data in requests:
        error, _ = client.call(kind, offset, length, data)
        assert error == 0, f"request {kind} at {offset}+{length}: error {error}"


__all__ = [
    "FLUSH",
    "READ",
    "WRITE",
    "Client",
    "Fio",
    "fio",
    "fio_files",
    "fio_nbd",
    "has_pattern",
    "is_served",
    "nbd_call_all",
    "need",
    "qemu_io",
    "write_pattern",
]

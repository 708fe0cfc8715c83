"""Data is really there: a benchmark whose targets answer quickly with anything would lie.

Each target is filled once, in blocks that carry their own offset and a checksum, and read back completely before
anything is measured. A block that is missing, damaged or in another place ends the whole comparison. (That a checker
finds such blocks is itself a test: `tests/test_content.py`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from fio_client import fio
from harness import Failure

SHAPE = ["--bs=256k", "--iodepth=4", "--verify_interval=4k", "--verify_fatal=1", "--randrepeat=1"]
# Otherwise fio leaves a file in the current folder for each job.
SHAPE.append("--verify_state_save=0")


def fill(client: Sequence[str], size: int) -> None:
    """Writes `size` bytes from the beginning, and flushes."""
    fio(client, ["--rw=write", f"--size={size}", *SHAPE, "--verify=crc32c", "--do_verify=0", "--end_fsync=1"])


def check(client: Sequence[str], size: int) -> None:
    """Reads what `fill` wrote and compares every byte."""
    compare(client, ["--rw=read", f"--size={size}", *SHAPE, "--verify=crc32c"])


def check_zeroes(client: Sequence[str], size: int) -> None:
    """Reads and expects nothing but zeroes: what a null volume must answer."""
    compare(client, ["--rw=read", f"--size={size}", *SHAPE, "--verify=pattern", "--verify_pattern=0x00"])


def compare(client: Sequence[str], job: Sequence[str]) -> None:
    """Runs a job that verifies."""
    try:
        fio(client, job)
    except Failure as failure:
        raise Failure(f"the content of a target is wrong, so its figures would be worthless: {failure}") from failure

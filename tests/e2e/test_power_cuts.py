"""Losses of power of the real daemon, recorded by dm-log-writes in a guest: what was promised is there after each.
While cache devices replace each other, the device that the configuration names is whole after each, and one that could
take its place is too. That the tests would find it if it were not so is seen with devices that lose what was flushed.

Long: tests/power-cuts/run, with --replace or without."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.command import BINARY, ROOT, Result, run
from harness.guest import accelerator
from harness.slots import one_guest, slots

RUN = ROOT / "tests/power-cuts/run"
SETTINGS = ("--set", "flush_period=3s")
SECONDS_OF_LOAD = os.environ.get("SECONDS_OF_LOAD", "8")
PLAIN, REPLACE = "plain", "replace"
POINTS = {PLAIN: os.environ.get("POINTS", "40"), REPLACE: os.environ.get("POINTS", "24")}

# What is recorded once is used by all of them.
pytestmark = [pytest.mark.xdist_group("power-cuts"), pytest.mark.heavy, pytest.mark.limit(1000)]


@pytest.fixture(scope="module")
def binary() -> Iterator[Path]:
    """The program without what is for debuggers: a guest reads it much faster. Not in /dev/shm: the guest has one of
    its own."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-power-cuts."))
    stripped = folder / "forebay"
    if run(["strip", "-o", stripped, BINARY], ok=False).code != 0:
        shutil.copy(BINARY, stripped)
    yield stripped
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def recorded(binary: Path) -> Iterator[Path]:
    """Two recordings of one guest: `plain`, and `replace`. In memory: they are large, and read often."""
    if os.geteuid() != 0:
        pytest.skip("the guest is made as root")
    folder = Path(tempfile.mkdtemp(prefix="forebay-power-cuts.", dir="/dev/shm"))
    try:
        options = ["--only-record", "--seconds", SECONDS_OF_LOAD, "--keep", folder / PLAIN, "--both", folder / REPLACE]
        accelerator()
        with one_guest(), slots(2):
            run([RUN, *SETTINGS, *options], seconds=600, env={**os.environ, "FOREBAY": str(binary)})
        yield folder
    finally:
        shutil.rmtree(folder)


def cuts(recorded: Path, binary: Path, kind: str, points: str, *options: str) -> Result:
    words = [*SETTINGS, "--recorded", recorded / kind, "--points", points, *(["--replace"] if kind == REPLACE else [])]
    return run([RUN, *words, *options], ok=False, seconds=900, env={**os.environ, "FOREBAY": str(binary)})


@pytest.mark.parametrize("kind", [PLAIN, REPLACE])
def test_promises_are_kept(recorded: Path, binary: Path, kind: str) -> None:
    result = cuts(recorded, binary, kind, POINTS[kind])
    assert result.code == 0, f"a promise was broken: {result.describe()}"


@pytest.mark.parametrize(
    ("kind", "liar", "points"), [(PLAIN, "cache", "8"), (PLAIN, "backing", "8"), (REPLACE, "new", "12")]
)
def test_device_that_lies_is_found(recorded: Path, binary: Path, kind: str, liar: str, points: str) -> None:
    result = cuts(recorded, binary, kind, points, "--liar", liar)
    assert result.code == 1, f"it was not found: {result.describe()}"
    (again, *_) = [line for line in result.stdout.splitlines() if line.startswith("again: tests/power-cuts/run ")]
    assert ("--replace" in again) == (kind == REPLACE), f"another command repeats the cut: {again}"

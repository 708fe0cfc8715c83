"""The checker of content finds what it is there for. Real fio, on files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from comparison import content
from fio_client import raw
from harness import MIB, Failure

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed (scripts/setup installs it)")
SIZE = 2 * MIB
BLOCK = 4096


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A file that was filled and found to be right."""
    path = tmp_path / "file"
    content.fill(raw(path), SIZE)
    content.check(raw(path), SIZE)
    return path


def replace(path: Path, offset: int, data: bytes) -> None:
    """Damages a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("offset", [0, 5 * BLOCK + 700, SIZE - 1])
def test_one_byte_that_differs_is_found(filled: Path, offset: int) -> None:
    replace(filled, offset, bytes([filled.read_bytes()[offset] ^ 1]))
    with pytest.raises(Failure, match="content of a target is wrong"):
        content.check(raw(filled), SIZE)


def test_a_block_in_the_place_of_another_is_found(filled: Path) -> None:
    replace(filled, 9 * BLOCK, filled.read_bytes()[17 * BLOCK : 18 * BLOCK])
    with pytest.raises(Failure, match="content of a target is wrong"):
        content.check(raw(filled), SIZE)


def test_zeroes_instead_of_data_are_found(filled: Path) -> None:
    replace(filled, 3 * BLOCK, bytes(BLOCK))
    with pytest.raises(Failure, match="content of a target is wrong"):
        content.check(raw(filled), SIZE)


def test_a_null_volume_must_answer_zeroes(tmp_path: Path, filled: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(bytes(SIZE))
    content.check_zeroes(raw(empty), SIZE)
    with pytest.raises(Failure, match="content of a target is wrong"):
        content.check_zeroes(raw(filled), SIZE)

"""Writes blocks of a file until it fails, and knows afterwards which contents each of them may have.

python -m harness.block_writer write FILE KNOWN    writes at random; KNOWN gets what was acknowledged
python -m harness.block_writer check FILE KNOWN    each block has such contents"""

import mmap
import os
import random
import sys
from pathlib import Path

from .command import run
from .process import Process
from .waiting import eventually

E2E = Path(__file__).resolve().parents[1]
BLOCK, BLOCKS = 4096, 4096


def write(path: str, known_path: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    known: dict[int, tuple[int, ...]] = {}
    memory = mmap.mmap(-1, BLOCK)
    try:
        for number in range(1, 1 << 30):
            block = random.randrange(BLOCKS)
            memory[:] = number.to_bytes(8, "little") * (BLOCK // 8)
            before = known.pop(block, None)
            if before:
                known[block] = (*before, number)  # either may be there if this one fails
            os.pwrite(fd, memory, block * BLOCK)
            known[block] = (number,)
            if number == 1:
                print("begun", flush=True)
    except OSError:
        pass
    lines = [" ".join(map(str, (block, *numbers))) for block, numbers in known.items()]
    Path(known_path).write_text("\n".join(lines))


def check(path: str, known_path: str) -> None:
    with Path(path).open("rb", 0) as file:
        for line in Path(known_path).read_text().splitlines():
            block, *numbers = map(int, line.split())
            file.seek(block * BLOCK)
            found = file.read(BLOCK)
            assert found in [number.to_bytes(8, "little") * (BLOCK // 8) for number in numbers], f"block {block}"


class BlockWriter:
    """The writer in the background."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.file = file
        self.known = folder / "known"
        self.known.unlink(missing_ok=True)
        command = [sys.executable, "-m", "harness.block_writer", "write", file, self.known]
        self.process = Process(command, folder / "block-writer.err", cwd=E2E)
        eventually(lambda: "begun" in self.process.stdout() or not self.process.is_running, 30, "a block is written")
        assert self.process.is_running, self.process.tail()

    def ends(self) -> None:
        """It met the end of its server, and did not hang."""
        self.process.succeeds()
        assert self.known.read_text(), "nothing was acknowledged"

    def check(self) -> None:
        """All that was acknowledged is there."""
        run([sys.executable, "-m", "harness.block_writer", "check", self.file, self.known], cwd=E2E)


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])

"""The guide (docs/operate) is right: its pages are executed line by line, each command with what it prints
(tests/guide/execute.py), and so are the things that happen meanwhile: power fails, flash dies, a disk dies."""

from pathlib import Path

import pytest
from harness.stage import Stage, pages

# Pages that leave the machine as they found it come first: each of the others is followed by a new machine.
ORDER = [
    "attach-disk",
    "does-it-help",
    "advise",
    "databases",
    "what-if",
    "flash-life",
    "upgrade",
    "maintenance",
    "power-failed",
    "replace-flash",
    "several-volumes",
    "flash-died",
    "take-away",
    "move-host",
    "disk-died",
]
# test_guide_monitoring.py has it: it needs no block device, and so no guest.
ELSEWHERE = ["monitoring"]
# Seconds for one page, where processors are not emulated.
LIMIT = 150


def executed() -> list[Path]:
    """Every page is executed: one that is not in ORDER is the last."""
    found = [page for page in pages() if page.stem not in ELSEWHERE]
    return sorted(found, key=lambda page: ORDER.index(page.stem) if page.stem in ORDER else len(ORDER))


@pytest.mark.guest("guide", always=True)
@pytest.mark.limit(LIMIT)
@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in executed()])
def test_page_is_as_it_says(page: Path, stage: Stage) -> None:
    stage.execute(page, LIMIT - 5)

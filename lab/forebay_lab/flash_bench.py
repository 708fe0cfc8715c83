"""The model of flash devices: runs the example `flash-bench` and reads what it says.

A model is no measurement: it says the same on every machine, however busy.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import pandas as pd

from . import binaries
from .experiment import Binary, Lies, Work
from .servers import finished


def run(options: Sequence[str], work: Work) -> pd.DataFrame:
    """A line for each line that it gives. Ends with `Lies` if it fails or gives none."""
    output = work.folder / "flash.json"
    command = [str(binaries.path(Binary.FLASH_BENCH)), *options, "--json", str(output)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    work.ledger.add_process(child.pid)
    said = finished(child, work.progress)
    if child.returncode:
        raise Lies(f"flash-bench ended with {child.returncode}: {said[-500:]}")
    return parse(output.read_text())


def parse(text: str) -> pd.DataFrame:
    """Its output: a JSON object a line, all of one kind."""
    frame = pd.DataFrame([json.loads(line) for line in text.splitlines()])
    if frame.empty or frame["kind"].nunique() != 1 or frame.isna().to_numpy().any():
        raise Lies(f"flash-bench said nothing, or several things: {text[:200]!r}")
    return frame.drop(columns="kind")

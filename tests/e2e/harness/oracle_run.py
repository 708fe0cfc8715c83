"""Runs the oracle (oracle.py): in the background as a load, or to its end as a judge."""

import sys
from pathlib import Path

from .command import run
from .process import Process
from .waiting import eventually

E2E = Path(__file__).resolve().parents[1]


class Oracle:
    """Writes stamped sectors through one NBD export and knows afterwards what every sector may hold."""

    def __init__(self, folder: Path, socket: Path | str, export: str) -> None:
        self.folder = folder
        self.socket = str(socket)
        self.export = export
        self.state = folder / f"oracle-{export}.state"
        self.until = folder / f"oracle-{export}.until"
        self.runs = 0

    def _command(self, what: str, *options: object) -> list[str]:
        program = [sys.executable, "-m", "harness.oracle", what, "--state", str(self.state)]
        return [*program, "--socket", self.socket, "--export", self.export, *map(str, options)]

    def load(self, *, seconds: float = 600, seed: int = 1, depth: int = 16, sectors_max: int = 128) -> Process:
        """Starts writing in the background, and waits until it is connected. `finish` ends it, or a dead server."""
        self.until.unlink(missing_ok=True)
        self.runs += 1
        log = self.folder / f"oracle-{self.export}-{self.runs}.err"
        options = ["--seconds", seconds, "--seed", seed, "--depth", depth, "--sectors-max", sectors_max]
        process = Process(self._command("write", *options, "--until", self.until), log, cwd=E2E)
        eventually(lambda: "connected" in process.stdout() or not process.is_running, 30, "the writer connects")
        assert "connected" in process.stdout(), process.tail()
        return process

    def finish(self, process: Process, seconds: float = 120) -> str:
        """Ends a load; it must have met no error and read nothing wrong. Returns its summary."""
        self.until.touch()
        return process.succeeds(seconds)

    def write(self, seconds: float, **options: int) -> str:
        """Writes for so long."""
        return self.load(seconds=seconds, **options).succeeds(seconds + 120)

    def verify(self, when: str = "") -> None:
        """Every acknowledged write is there, read through the export."""
        result = run(self._command("verify"), ok=False, cwd=E2E)
        assert result.code == 0, f"wrong data {when}: {result.stdout}{result.stderr}"

    def verify_file(self, path: Path, when: str = "") -> None:
        """Every acknowledged write is in a raw image, such as a backing store that was drained to."""
        result = run(self._command("check-file", "--file", path), ok=False, cwd=E2E)
        assert result.code == 0, f"wrong data in {path} {when}: {result.stdout}{result.stderr}"

"""Schemathesis attacks the admin API as its own OpenAPI document describes it: no failure that is not documented,
answers and media types as described, nonsense refused, nothing without the token. See schemathesis.toml, which has
the seed.

FUZZ_SECONDS=N is the time of each pass of the long run; FAKE_DAEMON is the server under test."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.command import ROOT, run
from harness.process import Process
from harness.waiting import eventually

SCHEMATHESIS = ROOT / "target/venv/bin/schemathesis"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FAKE_DAEMON = Path(os.environ.get("FAKE_DAEMON", TARGET / "debug/examples/fake-daemon"))
CONFIG = Path(__file__).parent / "schemathesis.toml"
FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "40"))
# Events never end, and recordings last, so the fuzzer would wait for ever.
# crates/forebay-daemon/src/events/tests has them.
EXCLUDED = ["--exclude-path", "/v1/events", "--exclude-path", "/v1/volumes/{volume}/trace"]


class Server:
    """The admin API in front of a daemon that is made up. It ends when its standard input does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        token = folder / "token"
        token.touch(0o600)
        token.write_bytes(base64.b64encode(os.urandom(32)))
        self.authorization = f"Authorization: Bearer {token.read_text()}"
        fifo = folder / "stdin"
        os.mkfifo(fifo)
        self.stdin = os.open(fifo, os.O_RDWR)
        program = ["sh", "-c", 'exec "$1" "$2" "$3" <"$4"', "sh", FAKE_DAEMON, folder / "admin.sock", token, fifo]
        self.process = Process(program, folder / "server.log")
        eventually(lambda: "ready: " in self.process.stdout() or not self.process.is_running, 30, "the server is ready")
        self.address = self.process.stdout().partition("ready: ")[2].strip()
        assert self.address, self.process.tail()

    def fuzz(self, config: Path, seconds: float) -> None:
        # One worker: Python 3.11 cannot parse in two threads at once ("AST constructor recursion depth mismatch").
        limits = ["--max-time", str(int(seconds)), "--workers", "1"]
        options = ["--header", self.authorization, *EXCLUDED, *limits]
        url = f"http://{self.address}/v1/openapi.json"
        command = [SCHEMATHESIS, "--config-file", config, "run", url, *options]
        result = run(command, ok=False, seconds=seconds + 120, cwd=self.folder)
        assert result.code == 0, f"the fuzzer found something: {result.describe()}"

    def ends_well(self) -> None:
        """It still answers, did not panic, and ends in an orderly way."""
        answer = run(["curl", "-fsS", "-H", self.authorization, f"http://{self.address}/v1/daemon"])
        assert answer.json()["version"], answer.stdout
        assert "panicked at" not in self.process.stderr(), self.process.tail()
        os.close(self.stdin)
        self.process.succeeds()


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    if not SCHEMATHESIS.exists():
        pytest.skip("schemathesis is not installed (scripts/setup installs it)")
    if not FAKE_DAEMON.exists():
        pytest.skip(f"no {FAKE_DAEMON}: cargo test --workspace --no-run builds it, or set FAKE_DAEMON")
    made = Server(folder)
    yield made
    made.process.kill()


def config(folder: Path, names: str) -> Path:
    """The configuration with the names that there are, or without: the fuzzer makes its own up."""
    if names == "known":
        return CONFIG
    made = folder / "made-up-names.toml"
    made.write_text(CONFIG.read_text().partition("\n[parameters]")[0])
    return made


@pytest.mark.heavy
@pytest.mark.parametrize("names", ["known", "made-up"])
def test_api_is_as_described(server: Server, folder: Path, names: str) -> None:
    """A few seconds of it, with the seed of the configuration."""
    server.fuzz(config(folder, names), 4)
    server.ends_well()


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.limit(FUZZ_SECONDS + 200)
@pytest.mark.parametrize("names", ["known", "made-up"])
def test_api_for_longer(server: Server, folder: Path, names: str) -> None:
    server.fuzz(config(folder, names), FUZZ_SECONDS)
    server.ends_well()

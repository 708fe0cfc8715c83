"""The dashboard in a real browser: with and without a token, with live figures of 64 volumes, alarms, jobs that are
cancelled, a daemon that is restarted, at several widths, light and dark. harness/dashboard.py has the steps.

PICTURES=FOLDER takes pictures for the documentation instead."""

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need, write_pattern
from harness.command import ROOT
from harness.daemon import Daemon
from harness.devices import sparse
from harness.process import Process

# It needs a browser, which only `scripts/setup all` installs.
pytestmark = pytest.mark.long

E2E = Path(__file__).parent
PYTHON = ROOT / "target/browser/bin/python"
PICTURES = os.environ.get("PICTURES")
POOL = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "96MiB" }}]
endurance_budget = "1TB"
"""


def volume(folder: Path, name: str, mib: int, *settings: str) -> str:
    sparse(folder / f"{name}.img", mib << 20)
    stores = f'pool = "fast"\nbacking = "file:{folder}/{name}.img"\n'
    export = f'exports = ["nbd+unix:///{name}?socket={folder}/nbd.sock"]\n'
    return f"\n[volume.{name}]\n{stores}{export}" + "".join(f"{setting}\n" for setting in settings)


@pytest.fixture
def port(daemon: Daemon, folder: Path, free_port: Callable[[], int]) -> int:
    """The TCP port of a daemon with 64 volumes."""
    need("chromium", "qemu-io")
    if not PYTHON.exists():
        pytest.skip("playwright is not installed (scripts/setup lab installs it)")
    for token in ("token", "read-token"):
        (folder / token).touch(0o600)
        (folder / token).write_bytes(base64.b64encode(os.urandom(32)))
    # A flush that takes long enough to be cancelled.
    slow = ['max_destage_bandwidth = "128KiB"', 'idle_delay = "off"', *(['emulate = "hdd-7200"'] if PICTURES else [])]
    text = (
        POOL.format(folder=folder) + volume(folder, "db", 256, *slow) + volume(folder, "old", 1, 'idle_delay = "off"')
    )
    if PICTURES:
        text += "".join(volume(folder, name, 256) for name in ("logs", "mail", "vm-build"))
    else:
        text += "".join(volume(folder, f"v{number:02}", 1) for number in range(1, 63))
    tcp = free_port()
    tokens = f'token_file = "{folder}/token", read_token_file = "{folder}/read-token"'
    daemon.configure(text, f'admin_tcp = {{ listen = "127.0.0.1:{tcp}", {tokens} }}\n')
    daemon.start()
    write_pattern(f"nbd+unix:///old?socket={folder}/nbd.sock", 1, "0", "64k")
    return tcp


def browse(daemon: Daemon, port: int, *steps: str, seconds: float = 300) -> None:
    """Runs steps in the browser; stops and starts the daemon when they ask for it."""
    folder = daemon.folder
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [PYTHON, "-m", "harness.dashboard", folder, str(port), *steps]
    browser = Process(command, folder / "browser.err", env=env, cwd=E2E)
    wanted = folder / "wanted"
    until = time.monotonic() + seconds
    while browser.is_running and time.monotonic() < until:
        if wanted.exists():
            what = wanted.read_text()
            wanted.unlink()
            if what == "stop":
                daemon.stop()
            else:
                daemon.start()
            (folder / "done").touch()
        time.sleep(0.1)
    browser.succeeds(1)


if PICTURES:

    @pytest.mark.alone
    @pytest.mark.limit(600)
    def test_take_pictures(daemon: Daemon, port: int) -> None:
        browse(daemon, port, "--pictures", str(PICTURES), seconds=600)

else:

    @pytest.mark.heavy
    @pytest.mark.limit(400)
    def test_nothing_is_shown_without_a_token(daemon: Daemon, port: int) -> None:
        browse(daemon, port, "tokens")
        daemon.stop()

    @pytest.mark.heavy
    @pytest.mark.limit(400)
    def test_live_figures(daemon: Daemon, port: int) -> None:
        browse(daemon, port, "figures")
        daemon.stop()

    @pytest.mark.heavy
    @pytest.mark.limit(400)
    def test_alarms_jobs_and_a_restart(daemon: Daemon, port: int) -> None:
        browse(daemon, port, "alarms", "hidden", "restart")
        daemon.stop()

    @pytest.mark.heavy
    @pytest.mark.limit(400)
    def test_widths_and_colours(daemon: Daemon, port: int) -> None:
        browse(daemon, port, "widths")
        daemon.stop()

    @pytest.mark.parametrize(
        "header", [("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site"), ("Host", "evil.example")]
    )
    def test_pages_of_others_get_nothing(daemon: Daemon, header: tuple[str, str]) -> None:
        daemon.configure("")
        daemon.start()
        assert daemon.api.request("GET", "/v1/volumes", headers={"Host": "localhost"})[0] == 200
        assert daemon.api.request("GET", "/v1/volumes", headers={"Host": "localhost", **dict([header])})[0] == 403
        daemon.stop()

"""The example of docs/operate/security.md, as it is pasted: mutual TLS from end to end, and plaintext refused."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from harness.clients import need
from harness.command import BINARY, ROOT
from harness.devices import Devices
from harness.process import Process

PAGE = ROOT / "docs/operate/security.md"


def test_example_of_the_page_works(folder: Path, devices: Devices, free_port: Callable[[], int]) -> None:
    need("openssl", "nbdinfo", "qemu-io")
    # The block behind the comment that names this test.
    example = re.search(r"<!-- tests/e2e/[^\n]*security.page[^\n]*-->\n```sh\n(.*?)\n```", PAGE.read_text(), re.S)
    assert example and "tls-creds-x509" in example[1], f"the example was not found in {PAGE}"
    script = folder / "page.sh"
    script.write_text(example[1].replace("10899", str(free_port())))
    (folder / "bin").mkdir()
    (folder / "bin/forebay").symlink_to(BINARY)
    (folder / "paste").mkdir()
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    log, paste = folder / "page.err", folder / "paste"
    bash = Process(["bash", str(script)], log, env=env, cwd=paste, start_new_session=True)
    # If the example fails its daemon still runs.
    devices.at_exit(lambda: os.killpg(bash.pid, signal.SIGKILL))
    out = bash.succeeds(60)
    assert "TLS" in out, "no TLS in the example"
    assert "read 1048576/1048576 bytes" in out, "QEMU has not read"

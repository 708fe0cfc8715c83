"""Replaces the cache device of a daemon in the guest of `record`, again and again: the two devices take turns.

Marks in the log of dm-log-writes tell what the configuration has named when (`cuts.Configuration`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from cuts import CONFIG, ROUND
from writer import LogDevice

POLL_S = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", required=True)
    parser.add_argument("--admin", required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-device", required=True)
    parser.add_argument("--devices", nargs=2, required=True, help="names of two devices in /dev/mapper")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    log = LogDevice(options.log_device)

    def read() -> str:
        text = options.config.read_text()
        return next(name for name in options.devices if f'/dev/mapper/{name}"' in text)

    def mark() -> None:
        log.mark(CONFIG + read())

    end, rounds = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        old = read()
        new = next(name for name in options.devices if name != old)
        log.mark(ROUND + old)
        mark()
        command = [options.forebay, "pool", "replace", "fast", "--device", f"/dev/mapper/{new}", "--overwrite"]
        job = subprocess.Popen([*command, "--admin", options.admin])
        while job.poll() is None:
            mark()
            time.sleep(POLL_S)
        mark()
        mark()
        if job.returncode or read() != new:
            raise SystemExit(f"replacing {old} failed")
        rounds += 1
        time.sleep(0.5)
    print(f"replacer: {rounds} devices replaced")
    return 0


if __name__ == "__main__":
    sys.exit(main())

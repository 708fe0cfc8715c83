"""What test_boot.py does in its guest, once that is up: `first` before the loss of power, `second` after it, with one
disk late and one that never comes. What is wrong goes to /out/failed; at the end the guest is switched off, or goes on
writing until its power is cut."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

from .command import Forebay, run
from .waiting import eventually

OUT = Path("/out")
CONFIG = Path("/etc/forebay/forebay.toml")
BY_ID = "/dev/disk/by-id/virtio-extra"
VOLUMES = ("db", "mail", "file", "late")


def is_mounted(volume: str) -> bool:
    return Path("/srv", volume).is_mount()


def all_mounted(when: str) -> None:
    for volume in VOLUMES:
        eventually(lambda volume=volume: is_mounted(volume), 60, f"/srv/{volume} is mounted {when}")


def source(path: str) -> str:
    """What is mounted there."""
    words = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next(one[0] for one in words if one[1] == path)


def copy(target: Path) -> None:
    """A copy of the file `kept` that is on the disk."""
    shutil.copyfile(OUT / "kept", target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def is_kept(target: Path) -> bool:
    return target.read_bytes() == (OUT / "kept").read_bytes()


def device_has_one_name(forebay: Forebay) -> None:
    """A device is kept by the name that stays, and is no two volumes, whatever name it is given by."""
    node = os.path.realpath(BY_ID)
    said = forebay("volume", "attach", "extra", "--pool", "fast", "--backing", node, "--export", "ublk:").stdout
    assert node in said and BY_ID in said, f"it does not tell how the device is kept: {said}"
    text = CONFIG.read_text()
    assert f'{BY_ID}"' in text and f'{node}"' not in text, f"the file has another name: {text}"
    for name in (BY_ID, node):
        attach = ("volume", "attach", "twice", "--pool", "fast", "--backing", name)
        forebay.refused("backing.in-use", *attach, mentions=["extra"])
    # Another name of the same device is no change.
    CONFIG.write_text(text.replace(f'{BY_ID}"', f'{node}"'))
    forebay("reload")
    CONFIG.write_text(text)


def restart_is_a_pause() -> None:
    """A restart of the daemon pauses a block device, and its mount stays."""
    with Path("/srv/db/before-restart").open("w") as file:
        run(["systemctl", "restart", "forebay"])
        file.write("kept\n")
        file.flush()
        os.fsync(file.fileno())
    all_mounted("after a restart")


def daemon_knows_boot() -> None:
    """Where the unit hides the kernel's name for this boot (`ProcSubset=pid`), systemd passes it on."""
    pid = run(["systemctl", "show", "--property=MainPID", "--value", "forebay"]).stdout.strip()
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert f"FOREBAY_BOOT_ID={boot}" in environment, environment


def first(forebay: Forebay) -> None:
    all_mounted("after the start")
    daemon_knows_boot()
    for volume in VOLUMES:
        copy(Path("/srv", volume, "kept"))
    assert os.path.realpath("/dev/forebay/db.1-a") == source("/srv/db"), "/srv/db is not on its volume"
    assert source("/srv/file").startswith("/dev/loop"), "/srv/file is on no loop device"
    device_has_one_name(forebay)
    os.sync()
    restart_is_a_pause()
    for volume in VOLUMES:
        copy(Path("/srv", volume, "synced"))
    (OUT / "cut").touch()
    for number in itertools.count():  # until the power goes
        for volume in ("db", "mail", "file"):
            shutil.copyfile(OUT / "kept", Path("/srv", volume, f"busy.{number % 8}"))


def jobs() -> str:
    return run(["systemctl", "list-jobs", "--no-legend"]).stdout


def cache_is_kept(forebay: Forebay) -> None:
    """A loss of power is no change of the disks: the daemon drops no clean block, as it would if it could not tell."""
    events = forebay("events", "--kind", "backing", "--after", "oldest", "--json").stdout
    assert "backing.uncertain" not in events, events


def second(forebay: Forebay) -> None:
    for volume in ("db", "mail", "file"):
        eventually(lambda volume=volume: is_mounted(volume), 60, f"/srv/{volume} is mounted")
        assert is_kept(Path("/srv", volume, "synced")), f"/srv/{volume} has lost what was synced"
    cache_is_kept(forebay)
    assert Path("/dev/forebay/extra").is_block_device(), "the volume that was kept by another name is not there"
    alarms = forebay.json("alarms")["alarms"]
    missing = [alarm for alarm in alarms if alarm["pool"] == "other" and "virtio-flash1" in json.dumps(alarm)]
    assert missing, f"no alarm of the cache that is missing: {alarms}"

    (OUT / "plug").touch()
    eventually(lambda: is_mounted("late"), 60, "/srv/late is mounted")
    assert is_kept(Path("/srv/late/synced")), "/srv/late has lost what was synced"
    eventually(lambda: "srv-gone.mount" not in jobs(), 60, "the machine does not wait for what never comes")
    assert not is_mounted("gone"), "/srv/gone is mounted, from nowhere"
    failed = run(["systemctl", "--failed", "--plain", "--no-legend"]).stdout
    assert failed == "", f"failed: {failed}"


def main() -> None:
    step = (OUT / "steps").read_text().strip()
    forebay = Forebay(Path("/run"), admin=Path("/run/forebay/admin.sock"), binary=Path("/usr/bin/forebay"))
    try:
        {"first": first, "second": second}[step](forebay)
    except BaseException:
        state = []
        for command in (
            ["systemctl", "--no-pager", "status", "forebay", "srv-*.mount", "nbd@nbd0"],
            ["forebay", "status"],
        ):
            with contextlib.suppress(Exception):
                state.append(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout)
        (OUT / "failed.new").write_text("\n".join([traceback.format_exc(), *state]))
        (OUT / "failed.new").rename(OUT / "failed")
        sys.exit(1)
    finally:
        subprocess.run(["systemctl", "poweroff", "--no-block"], check=False)


main()

"""Makes a root to install into, and holds it: started by system_root.py in a mount namespace of its own.

    root_holder.py FOLDER FLAG...

FOLDER/root becomes the root of this machine under a layer that is thrown away. FOLDER and the checkout are in it at the
same places. /dev has few nodes, or all of this machine's with the flag `devices`; /run is empty but for what says that
systemd runs, and `systemctl` is a stand-in for it (harness/systemctl). With the flag `network` there is a loopback
device that is up.

Prints `ready` once it is there, or `skip: REASON`. At the end of its input everything that runs in the namespace is
killed, and the namespace is gone: also if who started it was killed. Standard library only."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HARNESS = Path(__file__).resolve().parent
CHECKOUT = HARNESS.parents[2]
NODES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "loop-control")


def mount(*words: object) -> None:
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"skip: mount {' '.join(map(str, words))}: {done.stderr.strip()}".replace("\n", " "), flush=True)
        sys.exit(1)


def forget_other_tests() -> None:
    """What other tests have mounted would stay mounted in here, and so be in use, after they have unmounted it."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(places):
        if "/forebay-e2e." in place:
            subprocess.run(["umount", "-l", place], stderr=subprocess.DEVNULL, check=False)


def remove(path: Path) -> None:
    """What others have left on this machine, and perhaps write just now."""
    for _ in range(100):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.1)
    sys.exit(f"{path} does not go away")


def make_nodes(dev: Path) -> None:
    for name in NODES:
        node = Path("/dev", name)
        if node.exists():
            status = node.stat()
            os.mknod(dev / name, status.st_mode, status.st_rdev)
            (dev / name).chmod(status.st_mode & 0o7777)
            os.chown(dev / name, status.st_uid, status.st_gid)
    (dev / "fd").symlink_to("/proc/self/fd")
    (dev / "shm").mkdir()


def use_devices(root: Path) -> None:
    """Devices that are made while the root is used are seen there, those of ublk too."""
    mount("--rbind", "/dev", root / "dev")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        if not Path("/dev", name).exists():
            Path("/dev", name).symlink_to(f"/proc/self/fd{target}")
    (root / "run/udev").mkdir()


def make(folder: Path) -> Path:
    root, layer = folder / "root", folder / "layer"
    for path in (root, layer):
        path.mkdir()
    # No layer may lie in another one: memory is in none.
    mount("-t", "tmpfs", "-o", "size=4G", "layer", layer)
    for path in (layer / "upper", layer / "work"):
        path.mkdir()
    mount("-t", "overlay", "-o", f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work", "root", root)
    for name in ("var/lib/forebay", "etc/forebay"):
        remove(root / name)
    mount("--bind", "/proc", root / "proc")
    mount("--rbind", "/sys", root / "sys")
    mount("-t", "tmpfs", "run", root / "run")
    for name in ("run/systemd/system", "run/lock"):
        (root / name).mkdir(parents=True)
    for path in (CHECKOUT, folder):
        inside = root / path.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        mount("--bind", path, inside)
    (root / "usr/bin/systemctl").unlink(missing_ok=True)
    shutil.copy(HARNESS / "systemctl", root / "usr/bin/systemctl")
    shutil.copy(HARNESS / "service_manager.py", root / "run/service_manager.py")
    return root


def others() -> list[int]:
    """Who else is in this mount namespace."""
    ours, found = Path("/proc/self/ns/mnt").readlink(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and (folder / "ns/mnt").readlink() == ours:
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return found


def kill_others() -> None:
    for _ in range(100):
        found = others()
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    print(f"these do not end: {found}", file=sys.stderr)


def main() -> None:
    folder, flags = Path(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_other_tests()
    root = make(folder)
    if "devices" in flags:
        use_devices(root)
    else:
        mount("-t", "tmpfs", "dev", root / "dev")
        make_nodes(root / "dev")
    if "network" in flags:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print("ready", flush=True)
    sys.stdin.read()
    kill_others()
    for path in (root, folder / "layer"):
        subprocess.run(["umount", "-R", "-l", path], stderr=subprocess.DEVNULL, check=False)


main()

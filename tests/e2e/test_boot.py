"""A machine boots as docs/operate/boot.md says: a guest with systemd as process 1 and what `make install` installs,
with the files and lines of that page. File systems on a block device, over NBD and on a file are mounted, over a loss
of power as well. A disk that comes late is mounted, one that never comes holds nothing up. At the end everything is
unmounted before the daemon stops."""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import BINARY, ROOT, Forebay, run
from harness.daemon import Daemon
from harness.devices import MIB, random_file, sparse
from harness.guest import Guest, slowness
from harness.waiting import eventually

PAGE = ROOT / "docs/operate/boot.md"
# Where nothing of this machine is seen.
OWN = [
    "etc/systemd/system",
    "etc/forebay",
    "etc/modprobe.d",
    "var/lib/forebay",
    "var/lib/systemd",
    "var/log",
    "var/tmp",
    "tmp",
    "srv",
    "out",
]
# What takes time and means nothing here.
MASKED = [
    "getty.target",
    "serial-getty@ttyS0.service",
    "systemd-logind.service",
    "dbus.service",
    "dbus.socket",
    "apparmor.service",
    "systemd-journal-flush.service",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-random-seed.service",
    "systemd-pstore.service",
    "systemd-user-sessions.service",
    "systemd-ask-password-wall.path",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-kernel-config.mount",
    "proc-sys-fs-binfmt_misc.automount",
    "e2scrub_reap.service",
]
STEPS = """[Unit]
After=multi-user.target
[Service]
Type=exec
Environment=E2E_SLOWNESS={slowness} PYTHONDONTWRITEBYTECODE=1 {more}
WorkingDirectory={e2e}
ExecStart={python} -m harness.boot_steps
"""
# At the end the daemon leaves no block device: the log, which is on the console, has what is left.
LEFT = """[Service]
ExecStopPost=+/bin/sh -c 'echo "left: $(forebay ublk list --json | tr -d "\\\\n")"'
"""
# Section of the page, and the volume for which its lines are written.
SECTIONS = [
    ("A block device", "late"),
    ("A block device", "gone"),
    ("A block device", "db"),
    ("NBD", "mail"),
    ("A FUSE file and a loop device", "file"),
]
EXPORTS = {
    "db": ("fast", "ublk:db.1-a"),
    "mail": ("fast", "nbd+unix:///mail?socket=/run/forebay/mail.sock"),
    "file": ("fast", "fuse:/srv/forebay/file/disk"),
    "late": ("fast", "ublk:"),
    "gone": ("other", "ublk:"),
}
BOOT_SECONDS = 120


class Machine:
    """The guest's system: a layer over the root of this machine."""

    def __init__(self, folder: Path, factor: float) -> None:
        self.folder = folder
        self.factor = factor
        self.out = folder / "out"
        self.layer = folder / "layer"
        self.upper = self.layer / "upper"
        self.units = self.upper / "etc/systemd/system"
        self.image = folder / "system.img"
        self.out.mkdir()

    def make(self) -> None:
        for path in (self.layer / "work", self.upper):
            path.mkdir(parents=True)
        # But not where this checkout lies: the guest runs its steps from there.
        for name in (name for name in OWN if not ROOT.is_relative_to(f"/{name}")):
            path = self.upper / name
            path.mkdir(parents=True, exist_ok=True)
            os.setxattr(path, "trusted.overlay.opaque", b"y")
        self.layer.chmod(0o755)
        for name in ("tmp", "var/tmp"):
            if (self.upper / name).exists():
                (self.upper / name).chmod(0o1777)
        self.install()
        self.write_units()
        self.write_page()
        self.write_config()
        sparse(self.image, 1 << 30)
        run(["mkfs.ext4", "-q", "-F", "-d", self.layer, self.image])

    def install(self) -> None:
        binary = self.folder / "forebay"
        run(["strip", "-o", binary, BINARY])
        install = {"FOREBAY": str(binary), "DESTDIR": str(self.upper), "PREFIX": "/usr"}
        run([ROOT / "scripts/install"], env={**os.environ, **install})
        for name in ("passwd", "group", "shadow", "gshadow"):  # systemd-sysusers adds to them
            run(["cp", "-a", f"/etc/{name}", self.upper / "etc"])
        run(["systemd-sysusers", f"--root={self.upper}", self.upper / "usr/lib/sysusers.d/forebay.conf"])
        if Path("/.dockerenv").exists():  # it would make systemd take the guest for a container
            os.mknod(self.upper / ".dockerenv", 0o020000, os.makedev(0, 0))
        (self.upper / "etc/machine-id").write_text(f"{55:032x}\n")
        (self.upper / "etc/hostname").write_text("guest\n")
        for name in ("etc/.updated", "var/.updated"):
            (self.upper / name).touch()

    def write_units(self) -> None:
        (self.units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
        for name in MASKED:
            (self.units / name).symlink_to("/dev/null")
        wanted = self.units / "multi-user.target.wants"
        wanted.mkdir()
        (wanted / "remote-fs.target").symlink_to("/lib/systemd/system/remote-fs.target")
        (wanted / "forebay.service").symlink_to("/usr/lib/systemd/system/forebay.service")
        (wanted / "steps.service").symlink_to("../steps.service")
        more = "RECORD_MESSAGE_IDS=/out/ids" if "RECORD_MESSAGE_IDS" in os.environ else ""
        values = {"slowness": self.factor, "e2e": ROOT / "tests/e2e", "python": sys.executable, "more": more}
        (self.units / "steps.service").write_text(STEPS.format(**values))
        (self.units / "forebay.service.d").mkdir()
        (self.units / "forebay.service.d/left.conf").write_text(LEFT)

    def write_page(self) -> None:
        """The files and lines of the page."""
        fstab, nbdtab = self.upper / "etc/fstab", self.upper / "etc/nbdtab"
        for path in (fstab, nbdtab):
            path.write_text("")
        for section, volume in SECTIONS:
            self.write_section(section, volume)
        # A name with odd characters; what is missing is given up sooner, and this guest may be slow.
        lines = []
        for line in fstab.read_text().splitlines():
            changed = line.replace("/dev/forebay/db", "/dev/forebay/db.1-a")
            changed = changed.replace("forebay-db.device", r"forebay-db.1\x2da.device")
            lines.append(changed.replace("timeout=60s", "timeout=20s" if "gone" in line else "timeout=600s"))
        fstab.write_text("\n".join(lines) + "\n")
        assert len(lines) == 5, f"the page has other lines: {lines}"
        assert len(nbdtab.read_text().splitlines()) == 1, nbdtab.read_text()

    def write_section(self, section: str, volume: str) -> None:
        """What a section writes, for another volume than db."""
        text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert text, f"the page has no section {section}"
        text = re.sub(r"\bdb\b", volume, text)
        for path, content in re.findall(r"^```ini\n# (/\S+)\n(.*?)^```", text, re.M | re.S):
            file = self.upper / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        for line, path in re.findall(r"^# echo '(.*)' >>(/.*)$", text, re.M):
            with (self.upper / path.lstrip("/")).open("a") as file:
                file.write(f"{line}\n")
        for name in (f"srv/{volume}", "srv/forebay"):
            (self.upper / name).mkdir(parents=True, exist_ok=True)

    def write_config(self) -> None:
        path = self.upper / "etc/forebay/forebay.toml"
        lines = [(ROOT / "packaging/forebay.toml").read_text()]
        for pool, flash in (("fast", "flash0"), ("other", "flash1")):
            lines.append(f'[pool.{pool}]\ndevices = [{{ path = "/dev/disk/by-id/virtio-{flash}" }}]')
        for volume, (pool, export) in EXPORTS.items():
            backing = f'backing = "/dev/disk/by-id/virtio-{volume}"'
            lines.append(f'[volume.{volume}]\npool = "{pool}"\n{backing}\nexports = ["{export}"]')
        path.write_text("\n".join(lines) + "\n")
        (user,) = re.findall(r"^forebay:[^:]*:(\d+):(\d+)", (self.upper / "etc/passwd").read_text(), re.M)
        os.chown(path, int(user[0]), int(user[1]))  # as a package does

    def boot(self, step: str, *disks: str) -> Guest:
        """A guest with these disks, in the background."""
        (self.out / "steps").write_text(step)
        (self.out / "failed").unlink(missing_ok=True)
        words = ["--system", self.image]
        for name in disks:
            words += ["--disk", name, self.folder / f"{name}.img"]
        return Guest(self.folder, *words, limit=BOOT_SECONDS * self.factor, name=f"guest-{step}")

    def asks(self, guest: Guest, what: str) -> None:
        """Waits until the guest asks for something."""

        def there() -> bool:
            assert_not_failed(guest, self)
            return (self.out / what).exists()

        try:
            eventually(
                lambda: there() or not guest.process.is_running,
                BOOT_SECONDS * self.factor,
                f"the guest asks for {what}",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{guest.last_words()}") from None
        assert there(), f"the guest has ended: {guest.last_words()}"


def assert_not_failed(guest: Guest, machine: Machine) -> None:
    failed = machine.out / "failed"
    if failed.exists():
        raise RuntimeError(f"{failed.read_text()}\n{guest.last_words()}")


def plug(monitor: Path, disk: Path) -> None:
    """A disk comes while the guest runs."""
    with socket.socket(socket.AF_UNIX) as qmp:
        qmp.connect(str(monitor))
        lines = qmp.makefile("r")

        def ask(command: str, **arguments: object) -> None:
            qmp.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            for line in lines:
                answer = json.loads(line)
                assert "error" not in answer, answer
                if "return" in answer:
                    return

        ask("qmp_capabilities")
        ask("blockdev-add", driver="raw", file={"driver": "file", "filename": str(disk)}, **{"node-name": "late"})
        ask("device_add", driver="virtio-blk-pci", bus="late", drive="late", serial="late")


def make_disks(folder: Path, daemon: Daemon) -> None:
    """Two caches, and disks with file systems."""
    caches = [
        f'[pool.{name}]\ndevices = [{{ path = "{folder}/{name}.img", size = "64MiB" }}]\n'
        for name in ("flash0", "flash1")
    ]
    daemon.configure("".join(caches))
    daemon.start()
    daemon.stop()
    for name in (*EXPORTS, "extra"):
        run(["mkfs.ext4", "-q", "-F", sparse(folder / f"{name}.img", 24 * MIB)])


def end_is_in_order(console: str) -> None:
    """File systems first, then the daemon, and nothing is forced."""
    lines = console.splitlines()

    def line_of(words: str) -> int:
        found = [number for number, line in enumerate(lines) if words in line]
        assert found, f"the console has no '{words}': {chr(10).join(lines[-60:])}"
        return found[0]

    stopping = line_of("Stopping forebay.service")
    for volume in ("db", "mail", "file", "late"):
        assert line_of(f"Unmounted srv-{volume}.mount") < stopping, f"/srv/{volume} was there when the daemon stopped"
    assert stopping < line_of("Stopped forebay.service")
    end = lines[line_of("Unmounting srv-db.mount") :]
    wrong = [
        line for line in end if re.search(r"\[FAILED|Failed unmounting|[Tt]imed out|with signal|with result", line)
    ]
    assert not wrong, f"the end was not orderly: {wrong}"
    assert "left: []" in lines[line_of("left: [")], "the daemon has left block devices"


@pytest.fixture
def machine(folder: Path, root: None) -> Iterator[Machine]:
    del root
    need("qemu-system-x86_64", "mkfs.ext4", "systemd-sysusers", "nbd-client", "strip")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("this machine has no systemd")
    factor = slowness()
    made = Machine(folder, factor)
    made.make()
    yield made


@pytest.mark.heavy
@pytest.mark.xdist_group("guest")
@pytest.mark.limit(3000)
def test_machine_boots_as_page_says(machine: Machine, folder: Path, daemon: Daemon, forebay: Forebay) -> None:
    make_disks(folder, daemon)
    random_file(machine.out / "kept", MIB)
    guest = machine.boot("first", "flash0", "flash1", "db", "mail", "file", "late", "gone", "extra")
    try:
        machine.asks(guest, "cut")
        time.sleep(1)  # the guest writes meanwhile; what it had synced before is what counts
        guest.cut_power()

        # A cache is gone, a disk is late, and the others have other names than before.
        guest = machine.boot("second", "extra", "file", "mail", "db", "flash0", "gone")
        machine.asks(guest, "plug")
        plug(machine.out / "monitor", folder / "late.img")
        code = guest.process.wait(BOOT_SECONDS * machine.factor)
        assert_not_failed(guest, machine)
        assert code == 0, f"the guest ended with {code}: {guest.last_words()}"
        end_is_in_order(guest.console())
    finally:
        guest.clean_up()
        if (machine.out / "ids").exists():
            with Path(os.environ["RECORD_MESSAGE_IDS"]).open("a") as file:
                file.write((machine.out / "ids").read_text())
    forebay("check", folder / "flash0.img")

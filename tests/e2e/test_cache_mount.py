"""`forebay cache` and `forebay uncache`: a cache is put before a mounted disk and taken away. What is against it is
said before anything is changed. A step that fails, or is interrupted, is undone with all before it. Killed at any step,
the same command goes on, and `uncache` goes back; whenever the kill comes, what fstab names can be mounted."""

import contextlib
import hashlib
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.messages import check
from harness.process import Process, die_with_parent
from harness.stage import Stage
from harness.system_root import RootForebay
from harness.waiting import eventually

MOUNTPOINT = "/srv/db"
CACHE = ("cache", MOUNTPOINT, "--device", "/dev/nvme0n1")
UNCACHE = ("uncache", MOUNTPOINT)
# mount and umount fail once if they are told to, and before them something else happens once (/run/at-umount).
FAKE = """#!/bin/sh
if [ -e /run/fail-{0} ]; then rm /run/fail-{0}; echo "made to fail" >&2; exit 32; fi
if [ -e /run/at-{0} ]; then mv /run/at-{0} /run/now; sh /run/now; fi
exec /usr/bin/{0} "$@"
"""
OF_DISK = "  UUID={uuid}\t/srv/db  ext4 noatime,errors=remount-ro  0 2"
OF_VOLUME = re.compile(
    rb"^  /dev/forebay/db\t/srv/db  ext4 noatime,errors=remount-ro,_netdev,nofail,.*,"
    rb"x-systemd\.wanted-by=dev-forebay-db\.device  0 2$",
    re.M,
)
KEPT_LINE = re.compile(rb"^# before forebay:   UUID=.*0 2$", re.M)

in_guest = pytest.mark.guest("guide", always=True)


class Disk:
    """The disk at /srv/db, with or without a cache before it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.system = stage.system
        self.forebay = RootForebay(self.system)
        self.forebay.env["PATH"] = f"/run/fake:{self.forebay.env['PATH']}"
        self.fstab = self.system.path("etc/fstab")
        # What fstab is without a cache.
        self.original = b""
        for program in ("mount", "umount"):
            fake = self.system.path(f"run/fake/{program}")
            fake.parent.mkdir(exist_ok=True)
            fake.write_text(FAKE.format(program))
            fake.chmod(0o755)

    def make(self) -> None:
        """A new machine, whose disk is mounted without a cache."""
        self.stage.do(
            f"rm -rf /run/forebay-cache; new_machine; umount {MOUNTPOINT}; mount -o noatime /dev/sdb {MOUNTPOINT}"
        )
        self.write_fstab()

    def write_fstab(self, end: str = "\n") -> None:
        """With a line of the disk, and other lines, which must stay."""
        uuid = self.system.run("blkid", "-s", "UUID", "-o", "value", "/dev/sdb").stdout.strip()
        others = b"# kept: \\040 \xff\nnone /none tmpfs noauto\n"
        self.original = others + (OF_DISK.format(uuid=uuid) + end).encode()
        self.fstab.write_bytes(self.original)

    def mounts(self) -> list[tuple[str, set[str]]]:
        """What is mounted there: from where, with which options."""
        lines = Path(f"/proc/{self.system.holder.pid}/mounts").read_text().splitlines()
        words = [line.split() for line in lines]
        return [(one[0], set(one[3].split(","))) for one in words if one[1] == f"{self.system.at}{MOUNTPOINT}"]

    def has_data(self) -> None:
        """The data of the new machine is there."""
        sums = self.system.path("run/stage/sums").read_text().split()
        for wanted, name in zip(sums[::2], sums[1::2], strict=True):
            found = hashlib.sha256(self.system.path(f"{MOUNTPOINT}/{name}").read_bytes()).hexdigest()
            assert found == wanted, f"{name} is another one"

    def is_plain(self) -> bool:
        """Nothing of a cache is there, nor of an attempt to make one."""
        assert self.fstab.read_bytes() == self.original, self.fstab.read_bytes()
        ((source, options),) = self.mounts()
        assert source == "/dev/sdb", f"{source} is mounted"
        assert "noatime" in options
        assert not self.system.path("dev/forebay/db").is_symlink(), "there is a volume"
        self.has_data()
        assert not list(self.system.path("run/forebay-cache").glob("srv*")), "a note is left"
        pools = self.forebay("pool", "list", "--json", ok=False)
        assert pools.code != 0 or pools.json() == [], pools.describe()
        return True

    def is_cached(self) -> bool:
        """The volume is mounted, once, and fstab says so."""
        ((source, options),) = self.mounts()
        assert source.startswith("/dev/ublkb"), f"{source} is mounted"
        assert "noatime" in options
        text = self.fstab.read_bytes()
        assert OF_VOLUME.search(text), text
        assert KEPT_LINE.search(text), text
        self.has_data()
        assert self.volume()["mode"] == "writeback"
        return True

    def volume(self) -> dict[str, object]:
        return self.forebay.json("volume", "show", "db")

    def boots(self) -> None:
        """What fstab names can be mounted."""
        lines = [line for line in self.fstab.read_text(errors="replace").splitlines() if not line.startswith("#")]
        (line,) = [line for line in lines if MOUNTPOINT in line]
        if line.startswith("  /dev/forebay/db"):
            assert "[volume.db]" in self.system.path("etc/forebay/forebay.toml").read_text(), "there is no such volume"
        else:
            assert line.startswith("  UUID="), line

    def used(self) -> Process:
        """Starts a process that has a file of it open: `sleep`."""
        user = self.system.start("sh", "-c", f"exec sleep 1000 <{MOUNTPOINT}/table-aa", name="user")
        eventually(lambda: Path(f"/proc/{user.pid}/comm").read_text() == "sleep\n", 20, "somebody uses it")
        return user

    def before(self, program: str, script: str) -> None:
        """A script runs at the next call of mount or umount."""
        self.system.path(f"run/at-{program}").write_text(script)

    def fails_once(self, program: str) -> None:
        self.system.path(f"run/fail-{program}").touch()

    def dirty(self) -> str:
        """Makes a file, /srv/db/recent, that is only in the cache; its checksum."""
        self.stage.do("dirty 4")
        return self.system.path("run/stage/recent").read_text().strip()

    def killed(self, lines: int, later: float, *command: str) -> tuple[list[str], int]:
        """Kills a command so long after it has printed so many lines; these, and its exit code: it may have ended
        before."""
        run = [*self.system.inside(), "/usr/bin/forebay", *command]
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "preexec_fn": die_with_parent}
        with (
            (self.system.folder / "killed.err").open("ab") as err,
            subprocess.Popen(run, env=self.forebay.env, stderr=err, **how) as process,
        ):
            assert process.stdout
            printed = [process.stdout.readline().decode() for _ in range(lines)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(later if printed[-1] else 60)
            process.kill()
        return printed, process.returncode

    def killed_everywhere(self, *command: str) -> None:
        """A command is killed in each step, as it begins and ever later until it gets on, and given again, until it is
        done."""
        later, last, kills = 0.0, "", 0
        while True:
            (printed,), code = self.killed(1, later, *command)
            if code >= 0:
                break
            self.boots()
            kills += 1
            assert kills < 100, f"it gets no further than {last}: {command}: {self.errors()}"
            later = 0.0 if printed != last else later * 6 or random.uniform(0.02, 0.1)
            last = printed
        # A kill after the last step leaves nothing to do, which is an error. The caller looks whether all is done.
        print(f"killed {kills} times, and then it ended with {code}: {self.errors()}")
        assert kills >= 4, f"killed only {kills} times: {command}: {self.errors()}"

    def errors(self) -> str:
        """What the commands that were killed have said."""
        return (self.system.folder / "killed.err").read_text(errors="replace")[-3000:]


@pytest.fixture(scope="module")
def machine(stage: Stage) -> Iterator[Disk]:
    disk = Disk(stage)
    disk.make()
    yield disk
    stage.do("sed -i /UUID=/d /etc/fstab")


def holds(condition: object) -> bool:
    try:
        return bool(condition())  # type: ignore[operator]
    except (AssertionError, ValueError):
        return False


@pytest.fixture
def plain(machine: Disk) -> Disk:
    """The disk without a cache: as the test before has left it, if that is it."""
    if not holds(machine.is_plain):
        machine.make()
    return machine


@pytest.fixture
def cached(machine: Disk) -> Disk:
    """The disk with a cache: as the test before has left it, if that is it."""
    if not holds(machine.is_cached):
        machine.make()
        machine.forebay(*CACHE)
        assert machine.is_cached()
    return machine


@in_guest
def test_objections_come_before_changes(plain: Disk) -> None:
    log = plain.system.path("run/systemctl.log")
    log.write_text("")
    refused = plain.forebay.refused
    refused("attach.not-a-mount", "cache", "/srv", "--device", "/dev/nvme0n1", mentions=["/srv"])
    user = plain.used()
    refused("volume.in-use", *CACHE, mentions=[f"process {user.pid}", "sleep"])
    user.kill()
    plain.stage.do("mkfs.ext4 -q /dev/nvme0n1")
    refused("cache.foreign-data", *CACHE, mentions=["/dev/nvme0n1"])
    plain.fstab.write_bytes(plain.original + b"/dev/sdb /mnt ext4 noauto\n")
    refused("attach.fstab", *CACHE, mentions=["4", "/etc/fstab", "/mnt"])
    plain.fstab.write_bytes(plain.original)
    plain.stage.do("device nvme0n1")
    refused("setting.value", *CACHE, "--set", "mode=nonsense", code=2, mentions=["mode", "nonsense"])
    refused(
        "setting.conflict", *CACHE, "--set", "dirty_low_pct=60", "--set", "dirty_high_pct=50", code=2, mentions=["60"]
    )
    refused("setting.conflict", *CACHE, "--set", "mirror=on", code=2, mentions=["two devices"])
    assert plain.is_plain()
    changes = [line for line in log.read_text().splitlines() if not line.startswith(("show", "is-"))]
    assert not changes, "the service was touched"


@in_guest
def test_remounted_disk_stays_writable(plain: Disk) -> None:
    """The disk is mounted for writing, although fstab has `ro`: so it stays, with the cache and without."""
    original = plain.original
    plain.original = original.replace(b"noatime,errors", b"ro,noatime,errors")
    plain.fstab.write_bytes(plain.original)
    for command in (CACHE, UNCACHE):
        plain.forebay(*command)
        ((source, options),) = plain.mounts()
        assert source.startswith("/dev/ublkb") == (command == CACHE), source
        assert "rw" in options, options
    assert plain.is_plain()
    plain.original = original
    plain.fstab.write_bytes(original)


@in_guest
def test_commands_of_dry_run_do_it(plain: Disk) -> None:
    script = plain.forebay(*CACHE, "--dry-run").stdout
    assert plain.is_plain()
    assert f"umount {MOUNTPOINT}" in script.splitlines(), script
    plain.system.run("sh", "-ex", "-c", script)
    assert plain.is_cached()
    plain.forebay.refused("attach.disk", "cache", MOUNTPOINT, "--device", "/dev/nvme1n1", mentions=["/dev/ublkb"])


@in_guest
def test_disk_in_use_is_not_uncached(cached: Disk) -> None:
    """Nor one that is mounted twice, nor with an fstab that may not be changed."""
    refused = cached.forebay.refused
    user = cached.used()
    refused("volume.in-use", *UNCACHE, mentions=[f"process {user.pid}", "sleep"])
    user.kill()
    cached.fails_once("umount")
    refused("cli.pipe-child", *UNCACHE, mentions=["made to fail"])
    assert cached.is_cached()

    cached.stage.do(f"mkdir -p /mnt/too; mount --bind {MOUNTPOINT} /mnt/too")
    refused("volume.in-use", *UNCACHE, mentions=["/mnt/too"])
    cached.stage.do("umount /mnt/too")
    if cached.stage.do("chattr +i /etc/fstab", ok=False).code == 0:
        result = cached.forebay(*UNCACHE, ok=False)
        assert result.code == 1, result.describe()
        message = check("attach.fstab", result.messages, ["/etc/fstab", "chattr"], "uncache")
        allow = re.search(r"chattr [^;]*", message.text)
        assert allow, message
        cached.system.run("sh", "-c", allow[0])
        assert "forebay set" not in result.stdout, "it was begun"
    assert cached.is_cached()


@in_guest
def test_trouble_in_the_middle_is_undone(cached: Disk) -> None:
    """fstab is edited meanwhile; there is no room for a note; Ctrl-C comes."""
    refused = cached.forebay.refused
    cached.before("umount", "sed -i s/noatime,errors/noatime,nodev,errors/ /etc/fstab")
    refused("attach.fstab", *UNCACHE, mentions=["/etc/fstab"])
    edited = cached.fstab.read_bytes()
    assert b"nodev" in edited
    cached.fstab.write_bytes(edited.replace(b"noatime,nodev,errors", b"noatime,errors"))
    assert cached.is_cached()

    cached.stage.do("mount -t tmpfs -o size=8k notes /run/forebay-cache")
    cached.before("umount", "dd if=/dev/zero of=/run/forebay-cache/fill bs=4k 2>/dev/null")
    refused("cli.system", *UNCACHE, mentions=["No space left on device"])
    cached.stage.do("umount /run/forebay-cache")
    assert cached.is_cached()

    cached.dirty()
    cached.stage.do("dmsetup suspend --nolockfs --noflush guide-sdb")
    uncache = cached.forebay.start(*UNCACHE, name="interrupted")
    eventually(lambda: cached.volume()["mode"] != "writeback", 60, f"it is under way: {uncache.tail()}")
    uncache.signal(signal.SIGINT)
    code = uncache.wait()
    cached.stage.do("dmsetup resume --noudevsync guide-sdb")
    assert code == 1, f"exit code {code}: {uncache.tail()}"
    assert "--follow" not in uncache.stderr(), "it says that a job goes on"
    assert cached.is_cached()
    cached.system.path(f"{MOUNTPOINT}/recent").unlink()


@in_guest
def test_uncached_flash_is_taken_again(cached: Disk) -> None:
    # Who cannot see what is done has it done all the same.
    command = ["sh", "-c", 'exec "$@" >/dev/full', "sh", "/usr/bin/forebay", *UNCACHE]
    result = cached.system.run(*command, env=cached.forebay.env, ok=False)
    assert result.code == 1, result.describe()
    assert cached.is_plain()
    # The flash is not blank, and no objection.
    cached.fails_once("mount")
    cached.forebay.refused("cli.pipe-child", *CACHE, mentions=["made to fail"])
    assert cached.is_plain()


@in_guest
def test_killed_at_each_step_it_goes_on(plain: Disk) -> None:
    plain.write_fstab(end="")
    plain.killed_everywhere(*CACHE)
    assert plain.is_cached()
    recent = plain.dirty()
    plain.killed_everywhere(*UNCACHE)
    path = plain.system.path(f"{MOUNTPOINT}/recent")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == recent, "what was dirty is another one"
    path.unlink()
    assert plain.is_plain()


def goes_back(plain: Disk, line: int) -> None:
    printed, code = plain.killed(line, 0, *CACHE)
    assert code < 0, f"it was not killed, but ended with {code}: {printed}"
    plain.forebay(*UNCACHE)
    assert plain.is_plain()


@in_guest
def test_killed_it_goes_back(plain: Disk) -> None:
    goes_back(plain, 5)


@in_guest
@pytest.mark.long
@pytest.mark.parametrize("line", [1, 2, 3, 4, 6])
def test_killed_at_any_line_it_goes_back(plain: Disk, line: int) -> None:
    goes_back(plain, line)


@in_guest
@pytest.mark.long
def test_used_in_the_middle_it_is_undone(plain: Disk) -> None:
    """Somebody opens a file once the pool is made."""
    cache = plain.forebay.start(*CACHE, name="cache")
    eventually(lambda: "forebay pool create" in cache.stdout(), 60, f"the pool is made: {cache.tail()}")
    user = plain.used()
    assert cache.wait() == 1, cache.tail()
    user.kill()
    assert f"process {user.pid}" in cache.stderr(), cache.tail()
    assert plain.is_plain()

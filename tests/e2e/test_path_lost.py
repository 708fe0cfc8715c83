"""A cache file or backing file that is deleted, replaced or renamed while it is served: an alarm tells of it while
everything can still be saved, and nothing that is gone with the process is called safe. A backing file without a name
is written to another path when its volume is detached (`--save-to`), and a stop drains to the backing store what only
a deleted cache file has."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, Devices, assert_same, random_file, sparse
from harness.nbd import FLUSH, READ, WRITE, Client
from harness.waiting import eventually

LOST = "device.path-lost"
SIZE = 64 * MIB
DIRTY = b"\x5a" * MIB
AT = 8 * MIB

POOL = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
"""
MIRROR = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}, {{ path = "{folder}/other.img", size = "64MiB" }}]
mirror = true
"""
VOLUME = """[volume.db]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["{export}"]
idle_delay = "off"
"""


class Served:
    """Volume `db` on a backing file of random bytes, with a MiB that only the cache has."""

    def __init__(self, daemon: Daemon, folder: Path, pool: str = POOL) -> None:
        self.daemon = daemon
        self.folder = folder
        self.disk = folder / "disk.img"
        self.flash = folder / "flash.img"
        before = random_file(self.disk, SIZE).read_bytes()
        self.expected = before[:AT] + DIRTY + before[AT + MIB :]
        daemon.configure((pool + VOLUME).format(folder=folder, export=daemon.nbd("db")))
        daemon.start()
        self.write()

    def write(self) -> None:
        with self.client() as client:
            assert client.call(WRITE, AT, MIB, DIRTY)[0] == 0
            assert client.call(FLUSH)[0] == 0
        assert self.daemon.volume("db")["dirty_bytes"] == MIB

    def client(self) -> Client:
        return Client(str(self.daemon.socket("db")), "db")

    def same(self) -> None:
        """The volume is served, and has what it must have."""
        with self.client() as client:
            assert client.size == SIZE
            for at in range(0, SIZE, MIB):
                error, data = client.call(READ, at, MIB)
                assert error == 0, f"at {at}: error {error}"
                assert data == self.expected[at : at + MIB], f"at {at}: {data[:16]!r}"

    def state(self) -> str:
        return str(self.daemon.volume("db")["backing_state"])

    def save(self, to: Path, *args: object) -> None:
        self.daemon("volume", "detach", "db", "--save-to", to, *args)

    def alarmed(self, state: str, *mentions: object) -> str:
        """The alarm, the log, the volume and the metrics tell the same."""
        alarm = eventually(lambda: self._alarm(state), 30, f"an alarm that the file is {state}")
        assert alarm["severity"] == "error", alarm
        assert all(str(value) in alarm["message"] for value in ("db", self.disk, *mentions)), alarm
        self.daemon.logged(LOST, [self.disk, *mentions])
        assert f'forebay_backing_state{{pool="fast",volume="db",state="{state}"}} 1' in metrics(self.daemon)
        return str(alarm["message"])

    def _alarm(self, state: str) -> dict[str, object] | None:
        alarm, volume = self.daemon.alarm(LOST, volume="db"), self.daemon.volume("db")
        is_told = alarm and volume["backing_state"] == state and volume["backing_why"] == alarm["message"]
        return alarm if is_told else None

    def cache_alarmed(self, *mentions: object) -> str:
        alarm = self.daemon.alarmed(LOST, pool="fast")
        assert all(str(value) in alarm["message"] for value in (self.flash, *mentions)), alarm
        states = [device["state"] for device in self.daemon.pool("fast")["devices"]]
        assert "deleted" in states, states
        line = f'forebay_device_trouble{{pool="fast",device="{self.flash}",state="deleted"}} 1'
        assert line in metrics(self.daemon)
        return str(alarm["message"])


def metrics(daemon: Daemon) -> str:
    return daemon.api.request("GET", "/metrics")[1].decode()


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    """Another file of the same size, all zeroes, takes its name."""
    sparse(path.with_suffix(".zeroes"), path.stat().st_size).rename(path)


def literal(message: str, command: str) -> list[str]:
    """The command line that a message has, as it stands."""
    found = re.search(rf"{command} [^;\n]*", message)
    assert found, f"no {command} in: {message}"
    return shlex.split(found.group().split(". ")[0].rstrip("."))


def freeze_and_copy(message: str) -> None:
    """As it is told: the process is frozen, its file copied, then it is killed."""
    found = re.search(r"kill -STOP .*?(?=;)", message)
    assert found, message
    subprocess.run(["sh", "-ec", found.group()], check=True, timeout=100)


@pytest.fixture
def serve(daemon: Daemon, folder: Path) -> Callable[..., Served]:
    return lambda *args: Served(daemon, folder, *args)


@pytest.mark.parametrize("lose", [delete, replace])
def test_lost_backing_file_is_told_and_nothing_calls_it_safe(
    serve: Callable[..., Served], daemon: Daemon, lose: Callable[[Path], None]
) -> None:
    served = serve()
    assert served.state() == "ok"
    lose(served.disk)
    served.alarmed("deleted", "--save-to", "--discard")
    for command in (
        ["flush", "db"],
        ["volume", "detach", "db"],
        ["volume", "detach", "db", "--keep"],
        ["set", "db", "mode=writethrough", "--drain"],
        ["pool", "export", "fast"],
        ["upgrade"],
    ):
        daemon.refused(LOST, *command, mentions=[served.disk])
    assert served.state() == "deleted"
    served.same()
    code = daemon.running.terminate()
    assert code == 1, daemon.running.tail()
    ends = [message for message in daemon.messages() if message.id in (LOST, "pool.closed")]
    assert ends[-1].id == LOST, ends
    assert ends[-1].severity == "error", ends[-1]
    assert str(served.disk) in ends[-1].text, ends[-1]
    assert "pool.closed" not in {message.id for message in ends}, ends


@pytest.mark.parametrize("lose", [delete, replace])
def test_lost_backing_file_is_saved(serve: Callable[..., Served], daemon: Daemon, lose: Callable[[Path], None]) -> None:
    """As the alarm says, literally; what stands at its old path is not touched."""
    served = serve()
    served.disk.chmod(0o640)
    lose(served.disk)
    words = literal(served.alarmed("deleted"), "forebay volume detach")
    daemon(*words[1:])
    saved = Path(words[-1])
    assert saved.read_bytes() == served.expected
    assert saved.stat().st_mode & 0o777 == 0o640
    assert not Path(f"{saved}.part").exists()
    assert served.disk.exists() == (lose is replace)
    assert not served.disk.exists() or served.disk.read_bytes() == bytes(SIZE)
    assert daemon.volumes() == {}
    assert "volume" not in daemon.config()
    assert daemon.alarms() == []
    daemon("volume", "attach", "db", "--backing", f"file:{saved}", "--export", daemon.nbd("db"))
    served.same()
    daemon.restart()
    served.same()
    daemon.stop()


def test_saved_file_keeps_its_holes(daemon: Daemon, folder: Path) -> None:
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    disk = sparse(folder / "disk.img", 4096 * MIB)
    daemon("volume", "attach", "db", "--backing", f"file:{disk}", "--export", daemon.nbd("db"))
    with Client(str(daemon.socket("db")), "db") as client:
        for at in (0, 2048 * MIB, 4095 * MIB):
            assert client.call(WRITE, at, MIB, DIRTY)[0] == 0
    disk.unlink()
    saved = folder / "saved.img"
    daemon("volume", "detach", "db", "--save-to", saved)
    assert saved.stat().st_size == 4096 * MIB
    assert saved.stat().st_blocks * 512 < 16 * MIB
    with saved.open("rb") as file:
        for at in (0, 2048 * MIB, 4095 * MIB):
            file.seek(at)
            assert file.read(MIB) == DIRTY
    daemon.stop()


def test_what_is_in_the_way_is_not_overwritten(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    served.disk.unlink()
    mine = folder / "mine"
    mine.write_text("mine")
    part = folder / "saved.part"
    part.write_text("mine")
    detach = ["volume", "detach", "db"]
    daemon.refused("device.exists", *detach, "--save-to", mine, mentions=[mine])
    daemon.refused("device.exists", *detach, "--save-to", folder / "saved", mentions=[part])
    daemon.refused("device.missing", *detach, "--save-to", folder / "no/such/folder", mentions=["no/such"])
    with served.client():
        daemon.refused("volume.in-use", *detach, "--save-to", folder / "free", mentions=["--force"])
    free = f"save_to={folder}/free"
    for query in ("save_to=relative", f"how=keep&{free}", f"how=discard&{free}"):
        assert daemon.api.request("DELETE", f"/v1/volumes/db?{query}")[0] == 422, query
    assert mine.read_text() == part.read_text() == "mine"
    assert not (folder / "free").exists()
    served.same()
    # A second attempt finds nothing of the first ones in its way.
    served.save(folder / "free")
    assert (folder / "free").read_bytes() == served.expected
    daemon.stop()


def test_full_file_system_costs_nothing(
    serve: Callable[..., Served], daemon: Daemon, devices: Devices, folder: Path
) -> None:
    served = serve()
    small = devices.tmpfs("small", "16m")
    served.disk.unlink()
    daemon.refused("device.no-space", "volume", "detach", "db", "--save-to", small / "saved", mentions=[small])
    assert list(small.iterdir()) == []
    served.alarmed("deleted")
    served.same()
    served.save(folder / "saved")
    assert (folder / "saved").read_bytes() == served.expected
    daemon.stop()


def test_given_up_file(serve: Callable[..., Served], daemon: Daemon) -> None:
    """Who does not want it says so."""
    served = serve()
    served.disk.unlink()
    served.alarmed("deleted")
    daemon("volume", "detach", "db", "--discard")
    assert daemon.alarms() == []
    daemon.stop()


def test_killed_while_it_is_saved(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """What is at the path then is whole, or nothing is; a part is not taken for it."""
    served = serve()
    served.disk.unlink()
    saved, part = folder / "saved", folder / "saved.part"
    command = daemon.forebay.start("volume", "detach", "db", "--save-to", saved)
    eventually(lambda: part.exists() or saved.exists(), 30, "the copy has begun")
    daemon.kill()
    command.wait()
    if saved.exists():
        assert saved.read_bytes() == served.expected
    else:
        assert part.exists()
        assert "db" in daemon.config()["volume"]
    daemon.start()
    assert daemon.volumes().get("db", {"state": "absent"})["state"] == "absent"
    daemon.stop()


def test_stop_waits_for_what_is_being_saved(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    served.disk.unlink()
    saved, part = folder / "saved", folder / "saved.part"
    command = daemon.forebay.start("volume", "detach", "db", "--save-to", saved)
    eventually(lambda: part.exists() or saved.exists(), 30, "the copy has begun")
    code = daemon.running.terminate()
    command.wait()
    assert code == 0, daemon.running.tail()
    assert saved.read_bytes() == served.expected
    assert not part.exists()


def test_cancelled_while_it_is_saved(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """It is done, or the volume is served as before and nothing is left."""
    served = serve()
    served.disk.unlink()
    saved, part = folder / "saved", folder / "saved.part"
    job = daemon("volume", "detach", "db", "--save-to", saved, "--background").stdout.strip()
    eventually(lambda: part.exists() or saved.exists(), 30, "the copy has begun")
    daemon("jobs", job, "--cancel", ok=False)
    state = eventually(lambda: ended(daemon, job), 30, "the job ends")
    # The volume does not wait for the thread that copies.
    eventually(lambda: not part.exists(), 30, "nothing is left of the copy")
    if state == "completed":
        assert saved.read_bytes() == served.expected
    else:
        assert state == "cancelled"
        assert not saved.exists()
        eventually(lambda: daemon.volume("db")["state"] == "serving", 30, "it is served again")
        served.same()
        served.save(saved)
        assert saved.read_bytes() == served.expected
    daemon.stop()


def ended(daemon: Daemon, job: str) -> str | None:
    state = daemon.api.get(f"/v1/jobs/{job}")["state"]
    return state if state in ("completed", "failed", "cancelled") else None


def test_renamed_backing_file_is_found_again(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    away = folder / "away.img"
    served.disk.rename(away)
    message = served.alarmed("renamed", away)
    daemon.refused(LOST, "upgrade", mentions=[away])
    daemon.refused(LOST, "pool", "export", "fast", mentions=[away])
    # Nothing is lost with it.
    daemon("flush", "db")
    run(literal(message, "mv --no-clobber"))
    daemon.quiet(LOST)
    assert served.state() == "ok"
    assert daemon.volume("db")["backing_why"] is None
    assert served.disk.read_bytes() == served.expected
    # Its times have changed with its name, and that is no foreign write.
    served.write()
    daemon.kill()
    daemon.start()
    served.same()
    daemon.stop()


def test_restart_after_a_rename(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """A stop is no loss, and says what lets the next start find it."""
    served = serve()
    folder.joinpath("inner").mkdir()
    served.disk.rename(folder / "inner/away.img")
    served.alarmed("renamed")
    daemon.stop()
    closed = daemon.logged("pool.closed", [folder / "inner/away.img"])
    daemon.start()
    daemon.alarmed("volume.failed", volume="db")
    run(literal(closed.what, "mv --no-clobber"))
    eventually(lambda: daemon.volume("db")["state"] == "serving", 60, "it is served again")
    served.same()
    daemon.stop()


def test_renamed_file_can_be_detached(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    served.disk.rename(folder / "away.img")
    served.alarmed("renamed")
    daemon("volume", "detach", "db")
    assert (folder / "away.img").read_bytes() == served.expected
    assert daemon.alarms() == []
    daemon.stop()


def test_removed_name_of_several(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """A hard link: the file is not gone, and gets its name again as the alarm says."""
    served = serve()
    os.link(served.disk, folder / "second.img")
    served.disk.unlink()
    message = served.alarmed("unlinked")
    daemon("flush", "db")
    run(literal(message, "ln --logical"))
    daemon.quiet(LOST)
    assert served.state() == "ok"
    served.disk.unlink()
    served.alarmed("unlinked")
    (folder / "second.img").unlink()
    served.alarmed("deleted")
    served.save(folder / "saved")
    assert (folder / "saved").read_bytes() == served.expected
    daemon.stop()


def test_deleted_while_it_is_drained(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    daemon("set", "db", "max_destage_bandwidth=64KiB")
    job = daemon("volume", "detach", "db", "--background").stdout.strip()
    eventually(lambda: daemon.volume("db")["state"] == "draining", 30, "it is drained")
    served.disk.unlink()
    assert eventually(lambda: ended(daemon, job), 60, "the job ends") == "failed"
    assert daemon.api.get(f"/v1/jobs/{job}")["error_id"] == LOST
    eventually(lambda: daemon.volume("db")["state"] == "serving", 30, "it is served again")
    served.same()
    daemon("set", "db", "max_destage_bandwidth=0")
    served.save(folder / "saved")
    assert (folder / "saved").read_bytes() == served.expected
    daemon.stop()


def test_stop_drains_what_a_deleted_cache_file_has(serve: Callable[..., Served], daemon: Daemon) -> None:
    served = serve()
    served.flash.unlink()
    served.cache_alarmed("pool replace", "fast")
    daemon.refused(LOST, "upgrade", mentions=[served.flash])
    daemon.refused(LOST, "pool", "export", "fast", mentions=[served.flash])
    assert daemon.volume("db")["dirty_bytes"] == MIB
    daemon.stop()
    assert served.disk.read_bytes() == served.expected
    daemon.logged("pool.closed")


def test_deleted_cache_file_can_be_drained_and_replaced(serve: Callable[..., Served], daemon: Daemon) -> None:
    served = serve()
    served.flash.unlink()
    words = literal(served.cache_alarmed(), "forebay pool replace")
    daemon("flush", "db")
    assert served.disk.read_bytes() == served.expected
    served.write()
    daemon(*words[1:])
    daemon.quiet(LOST)
    eventually(lambda: daemon.pool("fast")["devices"][0]["path"] == f"{served.flash}.new", 30, "it is replaced")
    daemon.kill()
    daemon.start()
    assert daemon.volume("db")["dirty_bytes"] == MIB
    served.same()
    daemon.stop()


def test_stop_that_cannot_save_fails(serve: Callable[..., Served], daemon: Daemon) -> None:
    """Cache and backing file are deleted: nothing is left, and nothing is called safe."""
    served = serve()
    served.flash.unlink()
    served.disk.unlink()
    served.cache_alarmed()
    served.alarmed("deleted")
    code = daemon.running.terminate()
    assert code == 1, daemon.running.tail()
    last = [message for message in daemon.messages() if message.id == LOST][-1]
    assert all(str(path) in last.text for path in (served.flash, served.disk)), last
    daemon.never_logged("pool.closed")


def test_deleted_member_of_a_mirrored_cache(serve: Callable[..., Served], daemon: Daemon) -> None:
    """The other one has what is dirty: a stop need not drain."""
    served = serve(MIRROR)
    served.flash.unlink()
    words = literal(served.cache_alarmed(), "forebay pool replace")
    daemon.stop()
    daemon.logged("pool.closed", [MIB])
    daemon.start()
    daemon.alarmed("cache.degraded", pool="fast")
    served.same()
    assert words[3] == "fast"
    daemon.stop()


def test_deleted_members_of_a_mirrored_cache(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve(MIRROR)
    served.flash.unlink()
    (folder / "other.img").unlink()
    served.cache_alarmed()
    daemon.stop()
    assert served.disk.read_bytes() == served.expected


def test_foreign_file_at_the_path_of_a_cache_is_not_touched(
    serve: Callable[..., Served], daemon: Daemon, folder: Path
) -> None:
    """What erases the cache erases its file, not what has its name now."""
    served = serve()
    mine = os.urandom(SIZE)
    replace(served.flash)
    served.flash.write_bytes(mine)
    served.cache_alarmed()
    daemon("pool", "replace", "fast", "--old", served.flash, "--device", f"{folder}/next.img:64MiB")
    daemon.quiet(LOST)
    assert served.flash.read_bytes() == mine
    daemon.restart()
    assert served.flash.read_bytes() == mine
    served.same()
    daemon("volume", "detach", "db")
    (folder / "next.img").rename(folder / "away.img")
    (folder / "next.img").write_bytes(mine)
    daemon("pool", "remove", "fast", "--erase", ok=False)
    daemon.restart()
    assert (folder / "next.img").read_bytes() == mine
    daemon.stop()


def test_second_device_of_a_pool(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """One alarm tells of all cache files, and ends with the last."""
    served = serve()
    second = folder / "second.img"
    daemon("pool", "grow", "fast", "--device", f"{second}:64MiB")
    second.unlink()
    alarm = daemon.alarmed(LOST, pool="fast")
    assert str(second) in alarm["message"], alarm
    served.flash.rename(folder / "away.img")
    both = [served.flash, second]
    eventually(lambda: mentions(daemon.alarm(LOST, pool="fast"), both), 30, "the alarm tells of both")
    (folder / "away.img").rename(served.flash)
    eventually(lambda: not mentions(daemon.alarm(LOST, pool="fast"), [served.flash]), 30, "it tells of one")
    assert mentions(daemon.alarm(LOST, pool="fast"), [second])
    daemon("pool", "shrink", "fast", "--device", second)
    daemon.quiet(LOST)
    daemon.stop()
    assert served.disk.read_bytes() != served.expected, "a stop drained what is safe"
    daemon.start()
    served.same()
    daemon.stop()


def mentions(alarm: dict[str, str] | None, values: list[Path]) -> bool:
    return alarm is not None and all(str(value) in alarm["message"] for value in values)


def test_folder_is_gone(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """With everything in it; the copy goes to another file system."""
    served = serve()
    daemon("volume", "detach", "db")
    inner = folder / "inner"
    inner.mkdir()
    disk = random_file(inner / "disk.img", SIZE)
    before = disk.read_bytes()
    daemon("volume", "attach", "db", "--backing", f"file:{disk}", "--export", daemon.nbd("db"))
    inner.rename(folder / "outer")
    eventually(lambda: served.state() == "renamed", 30, "the folder was renamed")
    shutil.rmtree(folder / "outer")
    eventually(lambda: served.state() == "deleted", 30, "the folder is gone")
    shm = Path("/dev/shm") / folder.name
    try:
        daemon("volume", "detach", "db", "--save-to", shm)
        assert shm.read_bytes() == before
    finally:
        shm.unlink(missing_ok=True)
    daemon.stop()


def test_two_at_once_and_cut_off_clients(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    served.disk.unlink()
    with served.client():
        saves = [
            daemon.forebay.start("volume", "detach", "db", "--force", "--save-to", folder / name, name=name)
            for name in ("one", "two")
        ]
        codes = [save.wait() for save in saves]
    assert sorted(codes) == [0, 1], [save.tail() for save in saves]
    done = folder / ("one" if codes[0] == 0 else "two")
    other = folder / ("two" if codes[0] == 0 else "one")
    assert done.read_bytes() == served.expected
    assert not other.exists()
    assert not list(folder.glob("*.part"))
    daemon.stop()


def test_reload_that_takes_the_volume_away(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    served = serve()
    served.disk.unlink()
    served.alarmed("deleted")
    daemon.configure(POOL.format(folder=folder))
    daemon("reload", ok=False)
    failed = eventually(lambda: [job for job in daemon.api.get("/v1/jobs") if job["state"] == "failed"], 30, "a job")
    assert failed[0]["error_id"] == LOST, failed
    served.same()
    served.save(folder / "saved")
    assert (folder / "saved").read_bytes() == served.expected
    daemon.stop()


def test_own_mount_is_no_place(daemon: Daemon, folder: Path, fuse: None) -> None:
    """Writing there would wait for this very process."""
    del fuse
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    disk = random_file(folder / "disk.img", SIZE)
    (folder / "mnt").mkdir()
    daemon("volume", "attach", "db", "--backing", f"file:{disk}", "--export", f"fuse:{folder}/mnt/disk")
    expected = disk.read_bytes()
    disk.unlink()
    daemon.refused("device.own-mount", "volume", "detach", "db", "--save-to", folder / "mnt/saved")
    daemon("volume", "detach", "db", "--save-to", folder / "saved")
    assert (folder / "saved").read_bytes() == expected
    daemon.stop()


def test_backing_file_is_lost_when_the_cache_has_failed(
    serve: Callable[..., Served], daemon: Daemon, folder: Path
) -> None:
    served = serve()
    daemon("flush", "db")
    os.truncate(served.flash, 0)
    daemon.alarmed("cache.failed", pool="fast")
    eventually(lambda: daemon.pool("fast")["dirty_bytes"] == 0, 30, "the rescue has ended")
    served.disk.unlink()
    message = served.alarmed("deleted")
    new = f"{folder}/new.img:64MiB"
    daemon.refused(LOST, "pool", "replace", "fast", "--device", new, mentions=[served.disk])
    freeze_and_copy(message)
    daemon.running.wait()
    run(literal(message, "mv --no-clobber"))
    daemon.start()
    served.same()
    daemon("pool", "replace", "fast", "--device", new)
    served.same()
    daemon.stop()


def test_write_through_volume(serve: Callable[..., Served], daemon: Daemon) -> None:
    """Nothing of it is dirty, and all of it is gone."""
    served = serve()
    daemon("set", "db", "mode=writethrough", "--drain")
    served.disk.unlink()
    served.alarmed("deleted")
    assert daemon.running.terminate() == 1, daemon.running.tail()
    daemon.never_logged("pool.closed")


def test_volume_that_is_where_it_was_can_be_saved_too(
    serve: Callable[..., Served], daemon: Daemon, folder: Path
) -> None:
    served = serve()
    served.save(folder / "saved")
    assert (folder / "saved").read_bytes() == served.disk.read_bytes() == served.expected
    daemon.stop()


def test_deleted_and_made_anew_at_the_same_path(serve: Callable[..., Served], daemon: Daemon, folder: Path) -> None:
    """Twice: the file that was saved is lost as well."""
    served = serve()
    served.disk.unlink()
    served.save(served.disk)
    assert served.disk.read_bytes() == served.expected
    daemon("volume", "attach", "db", "--backing", f"file:{served.disk}", "--export", daemon.nbd("db"))
    assert served.state() == "ok"
    replace(served.disk)
    served.alarmed("deleted")
    served.save(folder / "again")
    assert (folder / "again").read_bytes() == served.expected
    assert served.disk.read_bytes() == bytes(SIZE)
    daemon.stop()


def test_run_tells_too(volume: RunVolume, folder: Path) -> None:
    """Without an API the process is frozen, the file copied, and the cache has the rest for the next start."""
    need("cp")
    expected = random_file(volume.backing, SIZE).read_bytes()
    volume.start("--set", "idle_delay=off")
    with Client(str(volume.socket), "vol") as client:
        assert client.call(WRITE, AT, MIB, DIRTY)[0] == 0
        assert client.call(FLUSH)[0] == 0
    volume.backing.unlink()
    message = volume.logged(LOST, [volume.backing])
    freeze_and_copy(message.text)
    volume.running.wait()
    saved = Path(f"{volume.backing}.saved")
    assert saved.stat().st_size == SIZE
    volume.backing = saved
    volume.start("--set", "on_backing_change=keep-dirty", "--set", "idle_delay=off")
    with Client(str(volume.socket), "vol") as client:
        for at in range(0, SIZE, MIB):
            wanted = DIRTY if at == AT else expected[at : at + MIB]
            assert client.call(READ, at, MIB) == (0, wanted), at
    saved.unlink()
    assert volume.running.terminate() == 1
    last = [message for message in volume.messages() if message.id in (LOST, "pool.closed")][-1]
    assert last.id == LOST, last
    del folder


def test_run_drains_a_deleted_cache(volume: RunVolume, folder: Path) -> None:
    base = random_file(folder / "base", SIZE)
    volume.backing.write_bytes(base.read_bytes())
    volume.start("--set", "idle_delay=off")
    with Client(str(volume.socket), "vol") as client:
        assert client.call(WRITE, AT, MIB, DIRTY)[0] == 0
    volume.cache.unlink()
    volume.logged(LOST, [volume.cache])
    volume.stop()
    with base.open("r+b") as file:
        file.seek(AT)
        file.write(DIRTY)
    assert_same(base, volume.backing)

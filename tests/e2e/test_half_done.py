"""A change that was done in part is finished by the same command again, and the trouble of one volume is not that of
others."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, write_pattern
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.process import Process
from harness.waiting import eventually

POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/{device}", size = "{size}" }}]\ncache_allocation = "sparse"\n'
VOLUME = """
[volume.{name}]
pool = "fast"
backing = "file:{folder}/{name}.img"
exports = [{exports}]
idle_delay = "off"
"""


def configure(
    daemon: Daemon,
    folder: Path,
    volumes: dict[str, list[str]],
    device: str = "flash.img",
    size: str = "64MiB",
) -> None:
    """Volumes by their names, with these exports."""
    text = POOL.format(folder=folder, device=device, size=size)
    for name, exports in volumes.items():
        uris = ", ".join(f'"{uri}"' for uri in exports)
        text += VOLUME.format(folder=folder, name=name, exports=uris)
    daemon.configure(text)


def test_export_that_was_in_the_way_is_made_by_the_next_reload(daemon: Daemon, folder: Path) -> None:
    """Of two new exports one cannot be made. When its place is free, a second reload makes it beside the first."""
    need("qemu-io")
    sparse(folder / "db.img", 32 * MIB)
    second, blocked = (
        f"nbd+unix:///db?socket={folder}/second.sock",
        f"nbd+unix:///db?socket={folder}/third.sock",
    )
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    daemon.start()
    (folder / "third.sock").write_text("a file of somebody else")
    configure(daemon, folder, {"db": [daemon.nbd("db"), second, blocked]})
    daemon("reload", ok=False)
    write_pattern(second, 0x11, "0", "1M")
    assert blocked not in daemon.volume("db")["exports"]
    (folder / "third.sock").unlink()
    daemon("reload")
    assert {second, blocked} <= set(daemon.volume("db")["exports"])
    has_pattern(blocked, 0x11, "0", "1M")
    daemon.stop()


@pytest.fixture
def full(daemon: Daemon, devices: Devices, folder: Path, root: None) -> Path:
    """A daemon whose configuration file is a link onto a file system that is full; what fills it."""
    del root
    need("qemu-io")
    sparse(folder / "db.img", 16 * MIB)
    etc = devices.tmpfs("etc", "64k")
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    text = daemon.config_path.read_text()
    daemon.config_path.unlink()
    (etc / "forebay.toml").write_text(text)
    daemon.config_path.symlink_to(etc / "forebay.toml")
    daemon.start()
    fill = etc / "fill"
    fill.write_bytes(bytes(1))
    with fill.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return fill


@pytest.fixture
def failed(daemon: Daemon, devices: Devices, folder: Path, root: None) -> Daemon:
    """The cache of three volumes has failed, and nothing is lost with it."""
    del root
    need("qemu-io")
    names = ("a", "b", "c")
    for name in names:
        sparse(folder / f"{name}.img", 32 * MIB)
    flash = devices.tmpfs("flash", "24M")
    configure(
        daemon,
        folder,
        {name: [daemon.nbd(name)] for name in names},
        "flash/cache.img",
        "64MiB",
    )
    daemon.start()
    ballast = flash / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(MIB)):
                pass
        except OSError:
            pass
    for name in names:
        write_pattern(daemon.nbd(name), 0x21, "0", "1M")
    eventually(lambda: daemon.pool("fast")["cache_failed"], 60, "the cache fails")
    ballast.unlink()
    return daemon


def test_new_cache_is_that_of_all_volumes_whose_stores_are_free(failed: Daemon, folder: Path) -> None:
    """Another process locks the store of the first volume at the moment at which the pool lets go of it. The others are
    served by the new cache, and the first one as soon as its store is free."""
    holder = Process(["flock", "--no-fork", folder / "a.img", "sleep", "1000"], folder / "holder.err")
    waits = rf"-> FLOCK +\S+ +\S+ {holder.pid} "
    eventually(
        lambda: re.search(waits, Path("/proc/locks").read_text()),
        30,
        "it waits for the lock",
    )
    told = failed("pool", "replace", "fast", "--device", f"{folder}/new.img:64MiB", ok=False)
    assert "pool fast has a new cache, but: " in told.stderr
    assert not failed.pool("fast")["cache_failed"]
    states = {name: volume["state"] for name, volume in failed.volumes().items()}
    assert {states.get(name) for name in "bc"} == {"serving"}, states
    failed.alarmed("volume.failed", volume="a")
    failed.quiet("cache.failed", pool="fast")
    failed.quiet("pool.failed", pool="fast")
    holder.kill()
    eventually(
        lambda: failed.volume("a")["state"] == "serving",
        60,
        "it is attached when its store is free",
    )
    failed.quiet("volume.failed", volume="a")
    for name in "abc":
        has_pattern(failed.nbd(name), 0x21, "0", "1M")
    failed.stop()


def test_volume_keeps_its_size_if_the_file_has_a_smaller_one(daemon: Daemon, folder: Path) -> None:
    """What lies beyond the configured end is dirty. The volume is served with it, and made smaller by command only."""
    need("qemu-io")
    sparse(folder / "db.img", 16 * MIB)
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    daemon.start()
    write_pattern(daemon.nbd("db"), 0x31, "12M", "1M")
    daemon.stop()
    with daemon.config_path.open("a") as file:
        file.write('size = "8MiB"\n')
    daemon.start()
    assert daemon.volume("db")["size_bytes"] == 16 * MIB
    daemon.logged("volume.size", ["db", 16 * MIB, 8 * MIB])
    has_pattern(daemon.nbd("db"), 0x31, "12M", "1M")
    daemon("volume", "resize", "db", "8MiB")
    daemon.restart()
    assert daemon.volume("db")["size_bytes"] == 8 * MIB
    daemon.stop()


def test_rule_beyond_the_end_keeps_no_volume_from_being_attached(daemon: Daemon, folder: Path) -> None:
    """The volume was made smaller than where the rule begins, and its file after it."""
    need("qemu-io")
    disk = sparse(folder / "db.img", 16 * MIB)
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    daemon.start()
    daemon("rules", "add", "db", "bypass lba=12MiB..")
    write_pattern(daemon.nbd("db"), 0x41, "1M", "1M")
    daemon("volume", "resize", "db", "8MiB")
    os.truncate(disk, 8 * MIB)
    daemon.restart()
    assert daemon.volume("db")["state"] == "serving"
    has_pattern(daemon.nbd("db"), 0x41, "1M", "1M")
    daemon("rules", "delete", "db", "1")
    daemon.stop()


def test_resize_that_the_file_cannot_take_is_done(daemon: Daemon, full: Path, folder: Path) -> None:
    """The growth of the pool is done, which the error tells, and a second attempt mends the file when there is room."""
    before = daemon.pool("fast")["capacity_bytes"]
    refused = daemon("pool", "grow", "fast", "--size", "128MiB", ok=False)
    # A replacement tells the same, and not to put back what the file has never named.
    replace = ["pool", "replace", "fast", "--device", f"{folder}/new.img:128MiB"]
    daemon.refused("config.unreadable", *replace, mentions=["No space left"])
    [failed] = [event["message"] for event in daemon.events("job.failed")]
    assert "new.img" not in failed, failed
    assert "pool fast has" in refused.stderr and "the configuration file has the old state" in refused.stderr
    grown = daemon.pool("fast")["capacity_bytes"]
    assert grown > before
    assert '"64MiB"' in daemon.config_path.read_text()
    full.unlink()
    daemon("pool", "grow", "fast", "--size", "128MiB")
    assert '"128MiB"' in daemon.config_path.read_text() or str(128 * MIB) in daemon.config_path.read_text()
    daemon.restart()
    assert daemon.pool("fast")["capacity_bytes"] == grown
    daemon.stop()


def test_shrink_that_the_file_cannot_take_is_done(daemon: Daemon, full: Path) -> None:
    """The pool is smaller, which the error reports; the same command writes the file, and a reload keeps the size."""
    before = daemon.pool("fast")["capacity_bytes"]
    shrink = ["pool", "shrink", "fast", "--size", "32MiB"]
    refused = daemon(*shrink, ok=False)
    assert refused.code != 0 and "the configuration file has the old state" in refused.stderr, refused.describe()
    shrunk = daemon.pool("fast")["capacity_bytes"]
    assert shrunk < before
    full.unlink()
    daemon(*shrink)
    daemon("reload")
    assert daemon.pool("fast")["capacity_bytes"] == shrunk
    daemon.restart()
    assert daemon.pool("fast")["capacity_bytes"] == shrunk
    daemon.stop()


def test_refused_device_is_never_listed(daemon: Daemon, folder: Path) -> None:
    """Whatever can be checked is checked before the file lists the device: a kill leaves no entry behind."""
    configure(daemon, folder, {})
    daemon.start()
    before = daemon.config_path.stat()
    other = folder / "other.img"
    daemon.refused("pool.size", "pool", "grow", "fast", "--fill", "--device", f"{other}:8GiB", code=2, mentions=["KiB"])
    after = daemon.config_path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "the file was written"
    assert not other.exists()


def test_growth_of_a_store_outlives_a_kill(daemon: Daemon, folder: Path) -> None:
    """The operator makes a backing file longer, and the volume with it; then the daemon is killed. Nobody else has
    written to the file."""
    need("qemu-io")
    sparse(folder / "db.img", 16 * MIB)
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    daemon.start()
    write_pattern(daemon.nbd("db"), 0x41, "1M", "1M")
    os.truncate(folder / "db.img", 32 * MIB)
    daemon("volume", "resize", "db", "max")
    assert daemon.volume("db")["size_bytes"] == 32 * MIB
    daemon.kill()
    daemon.start()
    assert daemon.volume("db")["state"] == "serving"
    has_pattern(daemon.nbd("db"), 0x41, "1M", "1M")
    daemon.stop()


def edited(daemon: Daemon, was: str, now: str) -> None:
    """Somebody edits the configuration file, and the daemon is not told."""
    text = daemon.config_path.read_text()
    assert was in text, text
    daemon.config_path.write_text(text.replace(was, now))


def test_resize_by_a_reload_that_fails_is_no_success(daemon: Daemon, folder: Path) -> None:
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": []})
    daemon.start()
    edited(daemon, 'idle_delay = "off"', 'idle_delay = "off"\nsize = "48MiB"')
    answer = daemon("reload", ok=False)
    assert "32" in answer.stderr and daemon.volume("db")["size_bytes"] == 32 * MIB, answer
    edited(daemon, '"48MiB"', '"16MiB"')
    daemon("reload")
    assert daemon.volume("db")["size_bytes"] == 16 * MIB
    # A file without a size asks for all that there is, and it stays one without.
    edited(daemon, 'size = "16MiB"\n', "")
    daemon("reload")
    assert daemon.volume("db")["size_bytes"] == 32 * MIB
    assert "size" not in daemon.config()["volume"]["db"], daemon.config()
    assert daemon.json("reload")["changed"] == []
    daemon.stop()


def test_resize_leaves_a_newer_size_in_the_file(daemon: Daemon, folder: Path) -> None:
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": []})
    daemon.start()
    daemon("volume", "resize", "db", "24MiB")
    edited(daemon, '"24MiB"', '"8MiB"')
    daemon("volume", "resize", "db", "20MiB")
    assert daemon.config()["volume"]["db"]["size"] == "8MiB"
    assert daemon.volume("db")["size_bytes"] == 20 * MIB
    daemon("reload")
    assert daemon.volume("db")["size_bytes"] == 8 * MIB
    daemon.stop()


def test_rules_that_nobody_read_are_not_overwritten(daemon: Daemon, folder: Path) -> None:
    """Rules that were edited in the file stay there, and a rule that cannot be taken out of it stays in force."""
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": []})
    daemon.start()
    daemon("rules", "add", "db", "bypass size=1MiB..")
    rule = '\n[[volume.db.rule]]\naction = "bypass"\nlba = "0..4MiB"\n'
    daemon.config_path.write_text(daemon.config_path.read_text() + rule)
    written = daemon.config_path.read_text()
    for command in (["rules", "add", "db", "bypass size=2MiB.."], ["rules", "delete", "db", "1"]):
        daemon.refused("config.not-read", *command, mentions=["forebay reload"])
        assert daemon.config_path.read_text() == written
        assert len(daemon.json("rules", "list", "db")["rules"]) == 1
    daemon("reload")
    daemon("rules", "delete", "db", "1")
    assert len(daemon.config()["volume"]["db"]["rule"]) == 1
    daemon.stop()


def test_mode_change_that_is_repeated_drains(daemon: Daemon, folder: Path) -> None:
    """Also if the mode is changed already, as after a drain that could not begin."""
    need("qemu-io")
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    daemon.start()
    write_pattern(daemon.nbd("db"), 0x33, "0", "4M")
    daemon("set", "db", "max_destage_iops=1")
    daemon("set", "db", "mode=writethrough", "--lazy")
    assert daemon.volume("db")["dirty_bytes"] > 0
    daemon("set", "db", "max_destage_iops=0")
    daemon("set", "db", "mode=writethrough", "--drain")
    assert daemon.volume("db")["dirty_bytes"] == 0
    assert daemon.json("set", "db", "mode=writethrough", "--drain")["job"] is None
    daemon.stop()


def test_detach_that_the_file_cannot_take_is_told(daemon: Daemon, full: Path) -> None:
    """Dirty data is not left without an alarm, and the volume is configured here as in the file."""
    write_pattern(daemon.nbd("db"), 0x44, "0", "1M")
    daemon("volume", "detach", "db", "--keep", ok=False)
    daemon.alarmed("volume.absent", volume="db")
    assert [event["volume"] for event in daemon.events("volume.detached")] == ["db"]
    daemon("volume", "attach", "db")
    has_pattern(daemon.nbd("db"), 0x44, "0", "1M")
    again = ["volume", "detach", "db", "--keep"]
    hint = daemon(*again, ok=False)
    assert "forebay volume detach db --keep" in hint.stderr, hint
    full.unlink()
    daemon(*again)
    assert "volume" not in daemon.config(), daemon.config()
    daemon.alarmed("volume.absent", volume="db")
    daemon.stop()


def test_renamed_pool_is_opened_when_the_old_one_is_closed(daemon: Daemon, folder: Path) -> None:
    """As the message of the reload says: without the volume first, then with it."""
    need("qemu-io")
    sparse(folder / "db.img", 16 * MIB)
    configure(daemon, folder, {"db": [daemon.nbd("db")]})
    daemon.start()
    write_pattern(daemon.nbd("db"), 0x55, "0", "1M")
    text = daemon.config_path.read_text().replace("[pool.fast]", "[pool.quick]").replace('"fast"', '"quick"')
    daemon.config_path.write_text(text)
    daemon("reload", ok=False)
    daemon.config_path.write_text(text[: text.index("[volume.")])
    daemon("reload")
    daemon.quiet("pool.failed", pool="quick")
    daemon.config_path.write_text(text)
    daemon("reload")
    has_pattern(daemon.nbd("db"), 0x55, "0", "1M")
    daemon.stop()


def test_fifo_in_place_of_the_file_holds_up_nothing(daemon: Daemon, folder: Path) -> None:
    sparse(folder / "db.img", 16 * MIB)
    configure(daemon, folder, {"db": []})
    daemon.start()
    text = daemon.config_path.read_text()
    daemon.config_path.unlink()
    os.mkfifo(daemon.config_path)
    for command in (["reload"], ["set", "db", "dirty_high_pct=33"]):
        daemon.refused("config.syntax", *command, mentions=["regular file"])
    daemon.config_path.unlink()
    daemon.config_path.write_text(text)
    daemon("set", "db", "dirty_high_pct=33")
    daemon.stop()


def test_numbers_of_jobs_are_not_given_twice(daemon: Daemon, folder: Path) -> None:
    """Whoever follows a job over a crash is told that it is gone, and not how another one has ended."""
    sparse(folder / "db.img", 16 * MIB)
    configure(daemon, folder, {"db": []})
    daemon.start()

    def flush() -> str:
        return daemon.json("flush", "db", "--background")["id"]

    assert flush() == "j1"
    daemon("jobs", "j1", "--follow")
    daemon.restart()
    assert flush() == "j2", "an orderly stop leaves none out"
    eventually((daemon.state_dir / "jobs.json").exists, 10, "the numbers are noted")
    daemon.kill()
    daemon.start()
    assert int(flush().removeprefix("j")) > 2
    daemon.refused("job.unknown", "jobs", "j2", "--follow")
    daemon("upgrade")
    successor = daemon.api.get("/v1/daemon")["pid"]
    assert int(flush().removeprefix("j")) > 3
    os.kill(successor, signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{successor}").exists(), 30, "the successor has ended")

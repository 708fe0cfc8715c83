"""Sound cache devices are replaced, and any one of several is given up, while clients write: also with kill -9 at any
moment, cancelled, and with new devices that are too small, in use, of the pool itself, or that end or stop answering
meanwhile. Every acknowledged write stays there, and the pool lies on the devices that the configuration names.

DELAYS=... for other moments of kill -9: milliseconds after the command was given, or with a c before them, after the
configuration was changed. test_replace_sound_mirrored.py does the same with mirrored pools."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import messages
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.hanging import HangingFiles, hanging_files
from harness.pools import (
    begin_job,
    closely,
    configured_devices,
    devices_of,
    hang,
    has_job,
    job,
    job_ends,
    lies_on,
    no_cache,
)
from harness.process import Process
from harness.waiting import eventually

DELAYS = os.environ.get("DELAYS", "200 c0").split()
VOLUME = '[volume.vol]\npool = "fast"\nbacking = "file:{folder}/vol.img"\nexports = ["{nbd}"]\nidle_delay = "off"\n'


def start(daemon: Daemon, sizes: dict[str, str], lines: str = "", more: str = "") -> None:
    """A pool `fast` on files of these sizes, with the volume `vol`."""
    folder = daemon.folder
    sparse(folder / "vol.img", 48 * MIB)
    entries = ", ".join(f'{{ path = "{folder}/{name}", size = "{size}" }}' for name, size in sizes.items())
    volume = VOLUME.format(folder=folder, nbd=daemon.nbd())
    daemon.configure(f"[pool.fast]\ndevices = [{entries}]\n{lines}\n{more}\n{volume}")
    daemon.start()


def replace(daemon: Daemon, new: str, old: str | None = None, *more: str) -> list[str]:
    """The words of `forebay pool replace`; NEW may have a size behind it."""
    leaves = ["--old", str(daemon.folder / old)] if old else []
    return ["pool", "replace", "fast", *leaves, "--device", f"{daemon.folder}/{new}", *more]


def grow(daemon: Daemon, new: str) -> None:
    daemon("pool", "grow", "fast", "--device", f"{daemon.folder}/{new}")


def gone(daemon: Daemon, *names: str) -> None:
    """These devices are no caches any more."""
    for name in names:
        no_cache(daemon.forebay, daemon.folder / name, "after it has left the pool")
        (daemon.folder / name).unlink()


@pytest.mark.heavy
def test_each_device_is_replaced_under_writes(daemon: Daemon, folder: Path) -> None:
    """The only device, by a larger one; then the first, the middle and the last of three."""
    start(daemon, {"a.img": "40MiB"}, 'segment_size = "256KiB"')
    oracle = daemon.oracle()
    load = oracle.load(seed=1)
    daemon(*replace(daemon, "b.img:44MiB"))
    lies_on(daemon, "b.img", when="after the only one was replaced")
    no_cache(daemon.forebay, folder / "a.img", "after it was replaced")
    assert daemon.config()["pool"]["fast"]["devices"][0]["size"] == "44MiB"
    grow(daemon, "c.img:17MiB")
    grow(daemon, "d.img:20MiB")
    choice = [folder / name for name in ("b.img", "c.img", "d.img")]
    daemon.refused("pool.device-choice", *replace(daemon, "x.img:64MiB"), code=2, mentions=["3", "--old PATH", *choice])
    daemon(*replace(daemon, "b2.img:44MiB", "b.img"))
    daemon(*replace(daemon, "c2.img:30MiB", "c.img"))
    daemon(*replace(daemon, "d2.img:24MiB", "d.img"))
    lies_on(daemon, "b2.img", "c2.img", "d2.img", when="after each of three was replaced")
    for device in daemon.pool("fast")["devices"]:
        flash = device["flash"]
        causes = flash["written_by_cause"]
        assert causes["device copy"] >= 17 * MIB and sum(causes.values()) == flash["written_bytes"], device
    oracle.finish(load)
    gone(daemon, "b.img", "c.img", "d.img")
    oracle.verify("after each device was replaced")
    daemon.kill()
    daemon.start()
    lies_on(daemon, "b2.img", "c2.img", "d2.img", when="after kill -9")
    oracle.verify("after kill -9")

    # Only the last device of a pool uses more than the one before it in its place.
    daemon.refused("device.too-small", *replace(daemon, "x.img:16MiB", "c2.img"), code=2, mentions=["17MiB"])
    daemon.stop()


def test_unfit_devices_are_refused(daemon: Daemon, folder: Path) -> None:
    """Too small, in use, of the pool itself, or for a device that the pool does not have: nothing is changed."""
    other = f'[pool.other]\ndevices = [{{ path = "{folder}/other.img", size = "32MiB" }}]\n'
    sizes = {"b2.img": "44MiB", "c2.img": "17MiB", "d2.img": "24MiB"}
    start(daemon, sizes, 'segment_size = "256KiB"', other)
    before = daemon.config_path.read_text()
    daemon.refused("device.too-small", *replace(daemon, "x.img:16MiB", "c2.img"), code=2, mentions=["17MiB"])
    daemon.refused("device.too-small", *replace(daemon, "x.img:16MiB", "d2.img"), code=2, mentions=["24MiB"])
    daemon.refused("pool.device-in-use", *replace(daemon, "other.img", "c2.img"), mentions=[folder / "other.img"])
    daemon.refused(
        "pool.device-in-use", *replace(daemon, "c2.img", "c2.img"), code=2, mentions=[folder / "c2.img", "fast"]
    )
    daemon.refused(
        "pool.device-in-use", *replace(daemon, "d2.img", "c2.img"), code=2, mentions=[folder / "d2.img", "fast"]
    )
    daemon.refused(
        "pool.device-unknown", *replace(daemon, "y.img:64MiB", "x.img"), code=2, mentions=[folder / "x.img", "fast"]
    )
    assert not (folder / "x.img").exists() and not (folder / "y.img").exists(), "a file is left behind"
    assert daemon.config_path.read_text() == before
    lies_on(daemon, *sizes, when="after refusals")
    daemon.stop()


@pytest.mark.heavy
def test_any_device_of_several_is_given_up(daemon: Daemon, folder: Path) -> None:
    """The middle one, then the first one, under writes; not the one for which the last device would have no room."""
    start(daemon, {"b2.img": "44MiB", "c2.img": "17MiB", "d2.img": "24MiB"}, 'segment_size = "256KiB"')
    oracle = daemon.oracle()
    load = oracle.load(seed=2)
    shrink = ["pool", "shrink", "fast", "--device"]
    daemon.refused("pool.replacement", *shrink, folder / "b2.img", code=2, mentions=[folder / "b2.img"])
    daemon(*replace(daemon, "d3.img:48MiB", "d2.img"))
    daemon(*shrink, folder / "c2.img")
    lies_on(daemon, "b2.img", "d3.img", when="after the middle one was given up")
    daemon(*shrink, folder / "b2.img")
    lies_on(daemon, "d3.img", when="after the first one was given up")
    oracle.finish(load)
    gone(daemon, "b2.img", "c2.img", "d2.img")
    oracle.verify("after devices were given up")
    daemon.stop()
    daemon.forebay("check", folder / "d3.img", "--state-dir", daemon.state_dir)
    daemon.start()
    oracle.verify("after a start")
    daemon.stop()


# --- What ends a copy early. A copy of so much takes a good part of a second.

TWO = {"d3.img": "48MiB", "e.img": "120MiB"}


def back(daemon: Daemon, new: str = "f.img", old: str = "e.img:120MiB") -> None:
    """Undoes a replacement that was complete before the test could do what it wanted to do meanwhile."""
    daemon(*replace(daemon, old, new, "--overwrite"))


def copy_is_seen(daemon: Daemon, id: str, new: str) -> bool:
    """Waits until the pool shows what is copied to the new device, and how much is left; false if all was copied
    before."""

    def seen() -> list[int]:
        copies = [device["copied"] for device in daemon.pool("fast")["devices"] if device["copied"]]
        return [copy["left_bytes"] for copy in copies if copy["to"] == str(daemon.folder / new)]

    closely(lambda: any(left > 0 for left in seen()) or job(daemon, id)["finished"], 30, "the copy is shown")
    return not job(daemon, id)["finished"]


def is_cancelled_halfway(daemon: Daemon) -> bool:
    """Begins to replace e.img, asks for another change, and cancels; false if it was completed before, and is
    undone."""
    id = begin_job(daemon, *replace(daemon, "f.img:120MiB", "e.img"))
    if not copy_is_seen(daemon, id, "f.img"):
        back(daemon)
        return False
    second = daemon(*replace(daemon, "g.img:120MiB", "d3.img"), ok=False)
    if second.code == 0:
        assert job(daemon, id)["state"] == "completed", "two changes at once"
        back(daemon, "g.img", "d3.img:48MiB")
        back(daemon)
        return False
    assert second.code == 1, second.describe()
    messages.check("pool.replacement", second.messages, ["fast"], "a second change")
    daemon("jobs", id, "--cancel", ok=False)
    if job_ends(daemon, id, "cancelled", "completed") == "completed":
        back(daemon)
        return False
    return True


@pytest.mark.heavy
def test_cancelled_replacement_changes_nothing(daemon: Daemon) -> None:
    """A second change is refused meanwhile. The new device can be taken afterwards."""
    start(daemon, TWO)
    oracle = daemon.oracle()
    load = oracle.load(seed=3)
    assert any(is_cancelled_halfway(daemon) for _ in range(6)), "it is copied each time before it can be cancelled"
    oracle.finish(load)
    lies_on(daemon, "d3.img", "e.img", when="after it was cancelled")
    oracle.verify("after it was cancelled")
    daemon(*replace(daemon, "f.img", "e.img"))
    lies_on(daemon, "d3.img", "f.img", when="after the same device was taken")
    oracle.verify("after the same device was taken")
    daemon.stop()


def test_replacement_is_followed_beside_another_job(daemon: Daemon) -> None:
    """A scrub is at work on the pool: the command follows the replacement, not that."""
    start(daemon, TWO)
    daemon.oracle().write(1)
    scrub = begin_job(daemon, "pool", "scrub", "fast", "--rate", "256KiB")
    replaced = begin_job(daemon, *replace(daemon, "f.img:120MiB", "e.img"))
    assert job(daemon, replaced)["kind"] == "replace"
    job_ends(daemon, replaced, "completed")
    daemon(*replace(daemon, "g.img:120MiB", "f.img"))
    lies_on(daemon, "d3.img", "g.img", when="when the command has ended")
    daemon("jobs", scrub, "--cancel")
    daemon.stop()


def has_data(device: Path) -> bool:
    """Whether something was written to the thirtieth MiB. Devices are copied from the first one on."""
    with device.open("rb") as file:
        return any(os.pread(file.fileno(), MIB, 30 * MIB))


def stopped_copy(daemon: Daemon) -> Process:
    """A command that replaces e.img by f.img, whose daemon is stopped before all data is copied."""
    for _ in range(6):
        command = daemon.forebay.start(*replace(daemon, "f.img:120MiB", "e.img"), name="replace")
        if has_job(daemon, command):
            daemon.running.pause()
            if has_data(daemon.folder / "e.img") and not has_data(daemon.folder / "f.img"):
                return command
            daemon.running.resume()
        command.succeeds()
        back(daemon)
    raise AssertionError("it is copied each time before it can be stopped")


@pytest.mark.heavy
def test_new_device_that_ends_changes_nothing(daemon: Daemon, folder: Path) -> None:
    start(daemon, TWO)
    oracle = daemon.oracle()
    load = oracle.load(seed=4)
    eventually(lambda: has_data(folder / "e.img"), 60, "e.img is written to")
    oracle.finish(load)
    command = stopped_copy(daemon)
    os.truncate(folder / "f.img", 1 * MIB)
    daemon.running.resume()
    assert command.wait() == 1, command.tail()
    messages.check("pool.replacement", messages.parse(command.stderr()), [folder / "f.img"], "the new device has ended")
    lies_on(daemon, "d3.img", "e.img", when="after the new device had ended")
    oracle.verify("after the new device had ended")
    daemon.stop()


def kill_at(daemon: Daemon, moment: str, command: Process) -> None:
    """Kills the daemon some milliseconds after a command was given, or after (`c`) it has changed the configuration."""
    if moment.startswith("c"):
        before = configured_devices(daemon)
        changed = lambda: configured_devices(daemon) != before  # noqa: E731
        closely(lambda: changed() or not command.is_running, 40, "the configuration changes")
        assert changed(), command.tail()
    time.sleep(int(moment.lstrip("c")) / 1000)
    daemon.kill()
    command.wait()


@pytest.mark.heavy
@pytest.mark.parametrize("moment", DELAYS)
def test_kill_during_replace_keeps_one_device(daemon: Daemon, moment: str) -> None:
    """The pool lies on one of both devices, whole, and the same command works again."""
    start(daemon, TWO)
    oracle = daemon.oracle()
    load = oracle.load(seed=11)
    command = daemon.forebay.start(*replace(daemon, "f.img:120MiB", "e.img"), name="replace")
    kill_at(daemon, moment, command)
    load.succeeds()
    daemon.start()
    oracle.verify(f"after kill -9 at {moment}")
    found = devices_of(daemon)
    assert found in (["d3.img", "e.img"], ["d3.img", "f.img"]), found
    if found[1] == "f.img":
        gone(daemon, "e.img")
        daemon(*replace(daemon, "e.img:120MiB", "f.img"))
    else:
        (daemon.folder / "f.img").unlink(missing_ok=True)
        daemon(*replace(daemon, "f.img:120MiB", "e.img"))
    oracle.verify("after another replacement")
    daemon.stop()


@pytest.mark.heavy
@pytest.mark.parametrize("moment", DELAYS)
def test_kill_while_a_device_is_given_up(daemon: Daemon, moment: str) -> None:
    """The pool lies on both devices or on the one that stays, and the same command works again."""
    start(daemon, TWO)
    oracle = daemon.oracle()
    load = oracle.load(seed=12)
    shrink = ["pool", "shrink", "fast", "--device", str(daemon.folder / "d3.img")]
    command = daemon.forebay.start(*shrink, name="shrink")
    kill_at(daemon, moment, command)
    load.succeeds()
    daemon.start()
    oracle.verify(f"after kill -9 at {moment}")
    found = devices_of(daemon)
    assert found in (["d3.img", "e.img"], ["e.img"]), found
    if found == ["e.img"]:
        gone(daemon, "d3.img")
        grow(daemon, "d3.img:48MiB")
    else:
        daemon(*shrink)
        gone(daemon, "d3.img")
    oracle.verify("after another change")
    daemon.stop()


@pytest.mark.heavy
def test_backing_store_gets_all_dirty_data(daemon: Daemon, folder: Path) -> None:
    """As much dirty data as fits is copied; afterwards the backing store gets all of it."""
    start(daemon, {"d3.img": "24MiB", "e.img": "24MiB"})
    oracle = daemon.oracle()
    load = oracle.load(seed=99)
    eventually(lambda: daemon.pool("fast")["dirty_bytes"] > 8 * MIB, 60, "much is dirty")
    daemon(*replace(daemon, "g.img:28MiB", "e.img"))
    oracle.finish(load)
    daemon("volume", "detach", "vol")
    oracle.verify_file(folder / "vol.img", "after the volume was detached")
    daemon.stop()


@pytest.mark.heavy
def test_encrypted_cache_is_replaced(daemon: Daemon, folder: Path) -> None:
    """What is written meanwhile is on both devices as it is encrypted."""
    key = folder / "key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    start(daemon, {"s.img": "64MiB"}, f'encryption_key_file = "{key}"')
    oracle = daemon.oracle()
    load = oracle.load(seed=5)
    daemon(*replace(daemon, "t.img:64MiB"))
    daemon(*replace(daemon, "u.img:68MiB"))
    oracle.finish(load)
    oracle.verify("after an encrypted cache was replaced")
    daemon.kill()
    daemon.start()
    lies_on(daemon, "u.img", when="after kill -9")
    oracle.verify("after kill -9")
    daemon.stop()


# --- A new device that does not answer.


NEW = "hanging-new/disk.img"


@pytest.fixture
def server(make_daemon: Callable[..., Daemon], folder: Path, fuse: None) -> Iterator[HangingFiles]:
    """Serves the new device."""
    del make_daemon, fuse
    with hanging_files(folder, "new", size=120 * MIB) as files:
        assert files.path("new") == folder / NEW
        yield files


def begin_slow(daemon: Daemon, server: HangingFiles) -> Process:
    """A command that copies onto the new device, which does not answer any more."""
    for _ in range(6):
        command = daemon.forebay.start(*replace(daemon, NEW, None, "--overwrite"), name="replace")
        assert has_job(daemon, command) or command.wait() == 0, command.tail()
        hang(server)
        if command.is_running and "disk.img" not in configured_devices(daemon):
            return command
        server.resume()
        command.succeeds()
        daemon(*replace(daemon, "v.img:100MiB"))
    raise AssertionError("it is copied each time before it can be stopped")


@pytest.mark.heavy
def test_hung_new_device_is_given_up_by_cancel(daemon: Daemon, server: HangingFiles) -> None:
    """Clients are answered although the new device does not answer, and the old device stays."""
    start(daemon, {"v.img": "100MiB"})
    oracle = daemon.oracle()
    load = oracle.load(seed=11)
    command = begin_slow(daemon, server)
    id = daemon.pool("fast")["job"]
    cancel = daemon.forebay.start("jobs", id, "--cancel", name="cancel")
    before = daemon.json("stats", "vol")["writes"]
    eventually(lambda: daemon.json("stats", "vol")["writes"] > before + 100, 60, "clients are answered")
    oracle.finish(load)
    server.resume()
    assert command.wait() != 0, "a device that does not answer has taken over"
    job_ends(daemon, id, "cancelled")
    cancel.wait()
    lies_on(daemon, "v.img", when="after it was cancelled")
    oracle.verify("after it was cancelled")
    daemon.stop()


@pytest.mark.heavy
def test_stop_does_not_wait_for_a_new_device(daemon: Daemon, server: HangingFiles) -> None:
    start(daemon, {"v.img": "100MiB"})
    oracle = daemon.oracle()
    load = oracle.load(seed=12)
    command = begin_slow(daemon, server)
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.logged("pool.closed", seconds=60)
    # The kernel lets nobody go who waits for a request that the server had taken when it was paused.
    server.resume()
    assert daemon.running.wait() == 0, daemon.running.tail()
    load.succeeds()
    command.wait()
    daemon.start()
    lies_on(daemon, "v.img", when="after a stop while the new device did not answer")
    oracle.verify("after a stop while the new device did not answer")
    daemon.stop()

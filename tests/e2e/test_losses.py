"""What only the cache had is damaged, in many places. Every surface says so, and all say the same.

A FLUSH fails once, a flush job fails for as long as something is lost, the log has a few lines, and the alarm ends when
the ranges are written again. A restart finds the losses again."""

import re
from pathlib import Path
from typing import Any

import pytest
from harness.clients import need, qemu_io, write_pattern
from harness.command import Result, run
from harness.daemon import Daemon
from harness.devices import MIB, sparse, spoil
from harness.waiting import eventually

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "256MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/disk.img"
exports = ["{export}"]
dirty_low_pct = 70
dirty_high_pct = 80
idle_delay = "1h"
"""


def losses(daemon: Daemon) -> list[tuple[int, int]]:
    """Offset and length of each lost range of volume `db`."""
    return places(daemon.api.get("/v1/volumes/db/losses"))


def places(listed: list[Any]) -> list[tuple[int, int]]:
    """Not the times, which follow from ages: they may differ by a second."""
    return [(loss["offset_bytes"], loss["bytes"]) for loss in listed]


def agree(daemon: Daemon, size: int, ranges: int) -> bool:
    """All surfaces, compared with one another and with what is lost of `db`."""
    listed = losses(daemon)
    assert (sum(length for _, length in listed), len(listed)) == (size, ranges)
    shown = daemon.json("volume", "show", "db")
    assert places(shown.get("losses", [])) == listed
    for of in (daemon.volume("db"), daemon.pool("fast")):
        assert (of["lost_bytes"], of["lost_ranges"]) == (size, ranges), of
    stats = daemon.api.get("/v1/volumes/db/stats")
    assert (stats["lost_bytes"], stats["lost_blocks"]) == (size, size // 4096)
    samples = {value for name, value in daemon.api.metrics().items() if name.startswith("forebay_lost_bytes{")}
    assert samples == {size}
    alarms = [alarm for alarm in daemon.alarms() if alarm["condition"] == "block.lost"]
    assert len(alarms) == (1 if size else 0), alarms
    for alarm in alarms:
        numbers = re.findall(r"\d+", alarm["message"])
        assert alarm["volume"] == "db", alarm
        assert str(ranges) in numbers, alarm
        assert str(listed[0][0]) in numbers, alarm
    screens_agree(daemon, size)
    return True


def screens_agree(daemon: Daemon, size: int) -> None:
    """The screens for people have the size of what is lost: 1 or 2 MiB here."""
    amount = re.compile(rf"\b{size >> 20}(\.0)? ?MiB\b")
    for screen in (("volume", "show", "db"), ("pool", "show", "fast"), ("status",)):
        lines = [line for line in daemon(*screen, ok=False).stdout.splitlines() if re.search("lost", line, re.I)]
        if size:
            assert any(amount.search(line) for line in lines), f"{screen}: {lines}"
        else:
            assert not any("LOST" in line for line in lines), f"{screen}: {lines}"


def agreed(daemon: Daemon, size: int, ranges: int) -> None:
    eventually(
        lambda: agree(daemon, size, ranges), 15, f"all surfaces say that {size} bytes in {ranges} ranges are lost"
    )


def flush(uri: str) -> Result:
    """A FLUSH of a client, whatever comes of it."""
    return qemu_io(uri, "flush", ok=False)


@pytest.fixture
def damaged(daemon: Daemon, folder: Path) -> str:
    """1 MiB clean, 4 MiB dirty; every second one of the dirty blocks is damaged, and a scrub has found that."""
    need("qemu-io")
    sparse(folder / "disk.img", 64 * MIB)
    uri = daemon.nbd("db")
    daemon.configure(CONFIG.format(folder=folder, export=uri))
    daemon.start()
    write_pattern(uri, 0x61, "0", "1M")
    daemon("flush", "db")
    agreed(daemon, 0, 0)
    write_pattern(uri, 0x62, "8M", "4M")
    before = len(daemon.messages())
    assert spoil(folder / "flash.img", 0x62) == 512
    daemon.refused("scrub.damage", "pool", "scrub", "fast", "--rate", "1GiB", mentions=["2MiB", 512])
    agreed(daemon, 2 * MIB, 512)
    lines = daemon.messages()[before:]
    assert len(lines) <= 5, f"{len(lines)} lines of the log for one loss and one scrub: {lines}"
    return uri


def test_flush_tells_once_and_jobs_always(damaged: str, daemon: Daemon) -> None:
    assert flush(damaged).code != 0, "a FLUSH that covers a loss succeeded"
    qemu_io(damaged, "flush")
    for _ in range(2):
        daemon.refused("volume.lost-data", "flush", "db", mentions=["2MiB", 512, "db"])
    assert daemon.volume("db")["dirty_bytes"] == 0, "the rest was not written back"
    daemon.refused("volume.lost-data", "volume", "detach", "db", mentions=["db"])
    agreed(daemon, 2 * MIB, 512)
    lost = run(["qemu-io", "-r", "-f", "raw", "-c", "read -P 0x62 8M 4k", damaged], ok=False)
    assert lost.code != 0, f"what is lost was read: {lost.describe()}"
    qemu_io(damaged, "read -P 0x62 8196k 4k")


def test_losses_are_found_again(damaged: str, daemon: Daemon, folder: Path) -> None:
    """After a stop, a kill, and while the volume is away; until exactly the listed ranges are written again."""
    daemon.refused("volume.lost-data", "flush", "db", mentions=["2MiB", 512, "db"])
    write_pattern(damaged, 0x63, "8M", "2M", flush=False)
    flush(damaged)
    qemu_io(damaged, "flush")
    agreed(daemon, MIB, 256)
    daemon.stop()
    daemon.logged("pool.closed", ["fast", "1MiB", 256, "db"])
    daemon.start()
    agreed(daemon, MIB, 256)
    assert flush(damaged).code != 0, "no FLUSH tells the clients of this start"
    daemon.kill()
    daemon.start()
    agreed(daemon, MIB, 256)

    daemon("volume", "detach", "db", "--keep")
    assert daemon.pool("fast")["lost_bytes"] == MIB, "it is forgotten while the volume is away"
    attach = ["--pool", "fast", "--backing", f"file:{folder}/disk.img", "--export", damaged]
    daemon("volume", "attach", "db", *attach)
    agreed(daemon, MIB, 256)

    qemu_io(damaged, *(f"write -P 0x64 {offset} {length}" for offset, length in losses(daemon)))
    agreed(daemon, 0, 0)
    flush(damaged)  # tells the clients of this start what was lost
    qemu_io(damaged, "flush")
    daemon("flush", "db")
    daemon.stop()
    last = daemon.messages()[-1]
    assert not re.search(r"\d (bytes|[KM]iB)|\dMiB", last.text), (
        f"the stop says that something is dirty or lost: {last}"
    )


def test_lost_data_of_an_absent_volume_counts_like_dirty(damaged: str, daemon: Daemon, folder: Path) -> None:
    """Nothing of it is dirty. It is shown until it is back or given up; its store and its pool are protected."""
    del damaged
    daemon.refused("volume.lost-data", "flush", "db", mentions=["2MiB", 512, "db"])
    assert daemon.volume("db")["dirty_bytes"] == 0
    listed = losses(daemon)
    daemon("volume", "detach", "db", "--keep")
    absent_with_losses(daemon, listed)

    daemon.stop()
    daemon.logged("pool.closed", ["2MiB", 512, "db"])
    daemon.start()
    eventually(lambda: daemon.volumes()["db"]["lost_bytes"] == 2 * MIB, 20, "the losses are found again")
    absent_with_losses(daemon, listed)

    store = f"file:{folder}/disk.img"
    daemon.refused("backing.dirty-elsewhere", "volume", "attach", "new", "--backing", store, mentions=["db", "2MiB"])
    daemon.refused("volume.absent", "volume", "detach", "db", mentions=["2MiB"])
    daemon.refused("volume.absent", "volume", "detach", "db", "--keep", mentions=["2MiB"])
    for leave in (("remove",), ("remove", "--erase"), ("export",)):
        daemon.refused("pool.dirty-data", "pool", leave[0], "fast", *leave[1:], mentions=["2MiB", "db"])
    absent_with_losses(daemon, listed)

    daemon("volume", "detach", "db", "--discard")
    assert daemon.volumes() == {}
    daemon.quiet("volume.absent")
    daemon.quiet("block.lost")
    daemon("pool", "remove", "fast")
    daemon.stop()


def absent_with_losses(daemon: Daemon, listed: list[tuple[int, int]]) -> None:
    """All surfaces show volume `db`, which is not attached and of which 2 MiB are lost."""
    volume = daemon.volumes()["db"]
    assert (volume["state"], volume["lost_bytes"], volume["lost_ranges"]) == ("absent", 2 * MIB, 512), volume
    assert daemon.volume("db") == volume
    assert losses(daemon) == listed
    assert places(daemon.json("volume", "show", "db")["losses"]) == listed
    assert daemon.alarm("volume.absent", volume="db")
    assert daemon.alarmed("block.lost", volume="db")
    metrics = daemon.api.metrics()
    assert metrics['forebay_lost_bytes{pool="fast",volume="db"}'] == 2 * MIB
    assert metrics['forebay_volume_state{pool="fast",volume="db",state="absent"}'] == 1
    screens_agree(daemon, 2 * MIB)


def test_scrub_job_and_event_agree_about_what_was_known_to_be_lost(damaged: str, daemon: Daemon) -> None:
    """A scrub passes by what is known to be lost, and says so wherever it tells of its end."""
    del damaged
    before = len(daemon.events("pool.scrubbed"))
    daemon.refused("scrub.damage", "pool", "scrub", "fast", "--rate", "1GiB", mentions=["2MiB", 512])
    (event,) = eventually(lambda: daemon.events("pool.scrubbed")[before:], 20, "an event of the second scrub")
    assert event["severity"] == "warning", event
    for value in ("2MiB", "512"):
        assert re.search(rf"\b{value}\b", event["message"]), event
    daemon.logged("pool.scrubbed", ["2MiB", 512])

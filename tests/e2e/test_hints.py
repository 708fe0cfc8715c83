"""Hints that are followed as they stand: what a message names is done, and then it works.

Each test raises one message, does what its hint says, and checks that the trouble is over and no data is."""

import os
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, write_pattern
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.messages import check, parse
from harness.waiting import eventually

POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'
VOLUME = """
[volume.{name}]
pool = "fast"
backing = "file:{folder}/{store}.img"
exports = ["{uri}"]
idle_delay = "off"
"""


def configure(daemon: Daemon, folder: Path, stores: dict[str, str], pool: str = "") -> None:
    """Volumes by their names, on these stores; further lines of the pool's section."""
    text = POOL.format(folder=folder) + pool
    for name, store in stores.items():
        text += VOLUME.format(folder=folder, name=name, store=store, uri=daemon.nbd(name))
    daemon.configure(text)


def test_key_is_added_to_the_section(daemon: Daemon, folder: Path) -> None:
    """`cache.key-missing`: give the key in the section of the pool, then `pool open`. No restart is needed."""
    need("qemu-io")
    key = folder / "key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    of_key = f'encryption_key_file = "{key}"\n'
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": "db"}, of_key)
    daemon.start()
    write_pattern(daemon.nbd("db"), 0x41, "0", "1M")
    daemon.stop()
    configure(daemon, folder, {"db": "db"})
    daemon.start()
    assert daemon.pool("fast")["not_open"]
    daemon.refused("cache.key-missing", "pool", "open", "fast", mentions=["encryption_key_file"])
    configure(daemon, folder, {"db": "db"}, of_key)
    daemon("pool", "open", "fast")
    has_pattern(daemon.nbd("db"), 0x41, "0", "1M")
    assert daemon.volume("db")["state"] == "serving"
    daemon.stop()


def test_stores_exchange_their_names(daemon: Daemon, folder: Path) -> None:
    """`backing.in-use`: exchange them in the file, then reload. Nothing that is dirty is lost."""
    need("qemu-io")
    for number, name in enumerate("ab"):
        with sparse(folder / f"{name}.img", 32 * MIB).open("r+b") as file:
            file.write(bytes([number + 1]) * MIB)
    configure(daemon, folder, {"a": "a", "b": "b"})
    daemon.start()
    for name, byte in (("a", 0x51), ("b", 0x52)):
        write_pattern(daemon.nbd(name), byte, "4M", "1M")
    daemon.stop()
    (folder / "a.img").rename(folder / "c.img")
    (folder / "b.img").rename(folder / "a.img")
    (folder / "c.img").rename(folder / "b.img")
    daemon.start()
    assert {volume["state"] for volume in daemon.volumes().values()} == {"absent"}, daemon.volumes()
    attach = ["volume", "attach", "a", "--backing", f"file:{folder}/b.img"]
    daemon.refused("backing.in-use", *attach, mentions=["a", "b", daemon.config_path, "forebay reload"])
    configure(daemon, folder, {"a": "b", "b": "a"})
    daemon("reload")
    for name, byte in (("a", 0x51), ("b", 0x52)):
        has_pattern(daemon.nbd(name), byte, "4M", "1M")
        daemon("flush", name)
    daemon.stop()


def test_sizes_have_limits_in_the_message(daemon: Daemon, folder: Path) -> None:
    """`volume.size` names the unit and the largest size, and both are taken as far as the store goes."""
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": "db"})
    daemon.start()
    daemon.refused("volume.size", "volume", "resize", "db", "5000", code=(1, 2), mentions=["5000", "512"])
    (folder / "large.img").touch()
    os.truncate(folder / "db.img", 64 * MIB)
    daemon("volume", "resize", "db", str(5000 // 512 * 512))
    daemon("volume", "resize", "db", "max")
    assert daemon.volume("db")["size_bytes"] == 64 * MIB
    daemon.stop()


def test_fifth_recording_leaves_no_file(daemon: Daemon, folder: Path) -> None:
    """The reason is the limit, not the empty file; once another has ended, it begins."""
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": "db"})
    daemon.start()
    words = ["trace", "record", "db", "--for", "1h", "--to"]
    others = [daemon.forebay.start(*words, folder / f"{at}.fbtrace", name=f"r{at}") for at in range(4)]

    def running() -> int:
        return sum(job["kind"] == "record" and job["state"] == "running" for job in daemon.api.get("/v1/jobs"))

    eventually(lambda: running() == 4, 30, "four recordings run")
    fifth = folder / "fifth.fbtrace"
    result = daemon(*words, fifth, ok=False)
    assert result.code == 1, result.describe()
    check("recording.too-many", result.messages, ["4"], "the fifth recording")
    assert not fifth.exists()
    others[0].terminate()
    eventually(lambda: running() == 3, 30, "one recording has ended")
    again = daemon.forebay.start(*words, fifth, name="again")
    eventually(lambda: running() == 4, 30, "the fifth recording runs")
    for recorder in [*others[1:], again]:
        recorder.terminate()
    assert not [message for message in parse(again.stderr()) if message.id.startswith("trace.")]
    daemon.stop()


@pytest.mark.parametrize("device", ["/dev/disk/by-path/none-ata-1:0", "/dev/none:64MiB"])
def test_absent_device_is_called_absent(daemon: Daemon, device: str) -> None:
    """A path with colons is not taken for a size."""
    daemon.configure("")
    daemon.start()
    daemon.refused("device.missing", "pool", "create", "fast", "--device", device, mentions=[device])
    assert daemon.api.get("/v1/pools") == []
    daemon.stop()


def test_configuration_behind_a_switched_link(daemon: Daemon, folder: Path) -> None:
    """Changes go to where the link leads now."""
    sparse(folder / "db.img", 32 * MIB)
    configure(daemon, folder, {"db": "db"})
    one, two = folder / "one.toml", folder / "two.toml"
    daemon.config_path.rename(one)
    daemon.config_path.symlink_to(one)
    daemon.start()
    two.write_text(one.read_text())
    daemon.config_path.unlink()
    daemon.config_path.symlink_to(two)
    before = one.read_text()
    daemon("set", "db", "dirty_high_pct=31")
    assert one.read_text() == before
    assert daemon.config()["volume"]["db"]["dirty_high_pct"] == 31
    assert daemon.config_path.is_symlink()
    daemon.stop()

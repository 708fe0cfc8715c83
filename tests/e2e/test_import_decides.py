"""Whoever can write to the flash can change the settings on an exported cache. An import takes of them what its
command names, or what the key of the cache has signed."""

import os
import re
import shlex
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.clients import has_pattern, need, write_pattern
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.hanging import HangingFiles, hanging_files
from harness.superblock import BLOCK, crc32c

# `crates/forebay-format/src/settings_copy.rs`.
COPIES, SECTOR, COPY_BYTES = (9, 25), 512, 7 * BLOCK
TEXT_BYTES, TEXT_CRC, MAC, CRC = 12, 144, slice(148, 180), 508

CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]
{more}
[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{uri}"]
idle_delay = "off"
"""


def exported(daemon: Daemon, folder: Path, more: str = "") -> None:
    """Pool `fast` with dirty data of volume `db`, exported. The daemon has no pool any more."""
    need("qemu-io")
    sparse(folder / "db.img", 32 * MIB)
    daemon.configure(CONFIG.format(folder=folder, uri=daemon.nbd("db"), more=more))
    daemon.start()
    write_pattern(daemon.nbd("db"), 0x41, "0", "1M")
    daemon("pool", "export", "fast")
    assert "pool" not in daemon.config()


def forge(flash: Path, old: str, new: str, mac: bytes | None = None) -> None:
    """Changes the settings on a cache as somebody does who can write to it, with checksums that are right."""
    with flash.open("r+b") as file:
        for block in COPIES:
            file.seek(block * BLOCK)
            copy = bytearray(file.read(COPY_BYTES))
            (length,) = struct.unpack_from("<I", copy, TEXT_BYTES)
            text = copy[SECTOR : SECTOR + length].decode()
            assert old in text, text
            changed = text.replace(old, new).encode()
            copy[SECTOR:] = changed.ljust(COPY_BYTES - SECTOR, b"\0")
            if mac is not None:
                copy[MAC] = mac
            struct.pack_into("<I", copy, TEXT_BYTES, len(changed))
            struct.pack_into("<I", copy, TEXT_CRC, crc32c(bytes(changed)))
            struct.pack_into("<I", copy, CRC, 0)
            struct.pack_into("<I", copy, CRC, crc32c(bytes(copy[:SECTOR])))
            file.seek(block * BLOCK)
            file.write(copy)


def is_served(daemon: Daemon) -> None:
    assert daemon.volume("db")["state"] == "serving"
    has_pattern(daemon.nbd("db"), 0x41, "0", "1M")
    daemon.stop()


def test_what_a_cache_names_is_named_by_the_command(daemon: Daemon, folder: Path) -> None:
    """The refusal shows the command, which works as it stands; nothing was changed before. A dry run shows the same."""
    exported(daemon, folder)
    before = daemon.config_path.read_text()
    words = ["pool", "import", "--device", folder / "flash.img"]
    options = f"--backing db=file://{folder}/db.img --export '{'db=' + daemon.nbd('db')}'"
    dry = daemon.json(*words, "--dry-run")
    assert " ".join(dry["unconfirmed"]) == options and not dry["signed"] and dry["key_file"] is None, dry
    assert dry["volumes"][0]["exports"] == [daemon.nbd("db")], dry
    shown = daemon(*words, "--dry-run").stdout
    assert options in shown and f"export {daemon.nbd('db')}" in shown, shown
    message = daemon.refused("pool.import-unconfirmed", *words, mentions=[options])
    assert daemon.config_path.read_text() == before and daemon.api.get("/v1/pools") == []
    only_export = [*words, "--export", f"db={daemon.nbd('db')}"]
    daemon.refused("pool.import-unconfirmed", *only_export, mentions=[f"--backing db=file://{folder}/db.img"])
    command = re.search(r"forebay (pool import .*)", message.hint)
    assert command, message.hint
    daemon(*shlex.split(command[1]))
    is_served(daemon)


def test_the_command_decides_which_exports_there_are(daemon: Daemon, folder: Path) -> None:
    exported(daemon, folder)
    words = ["pool", "import", "--device", folder / "flash.img", "--backing", f"db={folder}/db.img"]
    daemon.refused("export.syntax", *words, "--export", "db=nbd+unix:///db", code=(1, 2))
    daemon.refused("volume.not-in-pool", *words, "--export", "bd=ublk:", code=(1, 2))
    imported = daemon.json(*words, "--export", "db=")
    assert imported["volumes"][0]["exports"] == [], imported
    assert daemon.config()["volume"]["db"].get("exports", []) == []
    daemon.stop()


def test_forged_settings_reach_nothing(daemon: Daemon, folder: Path) -> None:
    """A file of root as backing store, a mount in a folder that others must not fill, and a volume that the cache does
    not know: nothing of them is read, made or configured."""
    exported(daemon, folder)
    secret = folder / "secret"
    secret.write_bytes(os.urandom(MIB))
    secret.chmod(0o600)
    then, read_at = secret.stat(), 10**18
    os.utime(secret, ns=(read_at, then.st_mtime_ns))
    units = folder / "units"
    units.mkdir()
    evil = f'exports = ["fuse:{units}/evil.conf", "nbd://0.0.0.0:10999/db"]\n'
    more = f'[volume.new]\npool = "fast"\nbacking = "file:{secret}"\nexports = ["fuse:{units}/new"]\n'
    forge(folder / "flash.img", f'exports = ["{daemon.nbd("db")}"]\n', evil)
    before = daemon.config_path.read_text()
    words = ["pool", "import", "--device", folder / "flash.img"]
    named = [f"db=fuse://{units}/evil.conf", "db=nbd://0.0.0.0:10999/db"]
    daemon.refused("pool.import-unconfirmed", *words, mentions=named)
    forge(folder / "flash.img", "[volume.db]", more + "[volume.db]")
    daemon.refused(
        "pool.import-unconfirmed", *words, mentions=[*named, f"new=file://{secret}", f"new=fuse://{units}/new"]
    )
    ours = ["--backing", f"db={folder}/db.img", "--export", f"db={daemon.nbd('db')}"]
    daemon.refused("pool.import-unconfirmed", *words, *ours, mentions=["new="])
    assert list(units.iterdir()) == [] and daemon.config_path.read_text() == before
    assert secret.stat().st_atime_ns == read_at and secret.stat().st_mtime_ns == then.st_mtime_ns
    daemon.stop()


@pytest.fixture
def key(folder: Path) -> Path:
    path = folder / "key"
    path.write_bytes(os.urandom(64))
    path.chmod(0o600)
    return path


def test_key_of_the_cache_signs_the_settings(daemon: Daemon, folder: Path, key: Path) -> None:
    """With the key nothing else needs to be named. Settings that others have changed are refused."""
    exported(daemon, folder, f'encryption_key_file = "{key}"')
    flash, words = folder / "flash.img", ["pool", "import", "--device", folder / "flash.img"]
    before = flash.read_bytes()
    message = daemon.refused("pool.import-unconfirmed", *words, mentions=[f"--key-file {key}"])
    assert "--backing" not in message.text and "--export" not in message.text, message.text
    with_key = [*words, "--key-file", key]
    forge(flash, "/db.img", "/other.img")
    daemon.refused("cache.export-forged", *with_key)
    # Without its MAC it is a cache that does not tell who wrote its settings.
    forge(flash, "/other.img", "/db.img", mac=bytes(32))
    daemon.refused("pool.import-unconfirmed", *with_key, mentions=[f"--backing db=file://{folder}/db.img"])
    flash.write_bytes(before)
    assert daemon.json(*with_key, "--dry-run")["signed"]
    daemon(*with_key)
    assert daemon.config()["pool"]["fast"]["encryption_key_file"] == str(key)
    is_served(daemon)


def test_key_of_another_is_of_no_use(daemon: Daemon, folder: Path, key: Path) -> None:
    exported(daemon, folder, f'encryption_key_file = "{key}"')
    other = folder / "other-key"
    other.write_bytes(os.urandom(64))
    other.chmod(0o600)
    daemon.refused("cache.key-wrong", "pool", "import", "--device", folder / "flash.img", "--key-file", other)
    daemon.stop()


def test_a_fifo_in_place_of_a_key_holds_up_nothing(daemon: Daemon, folder: Path) -> None:
    """It is refused at once, and the configuration can be changed."""
    fifo = folder / "fifo"
    os.mkfifo(fifo, 0o600)
    daemon.configure("")
    daemon.start()
    create = ["pool", "create", "fast", "--device", f"{folder}/flash.img:64MiB"]
    daemon.refused("key.unreadable", *create, "--set", f"encryption_key_file={fifo}", mentions=["regular file"])
    daemon(*create)
    daemon.stop()


@pytest.fixture
def hanging(make_daemon: Callable[..., Daemon], folder: Path) -> Iterator[HangingFiles]:
    del make_daemon  # its daemons end first
    with hanging_files(folder, "key") as files:
        yield files


def test_a_key_file_that_is_not_answered_is_given_up(daemon: Daemon, folder: Path, hanging: HangingFiles) -> None:
    """It lies on a file system whose server hangs. Other changes wait for it for seconds, not for ever."""
    daemon.configure("")
    daemon.start()
    hanging.pause()
    hanging.forget_size()
    create = ["pool", "create", "fast", "--device", f"{folder}/flash.img:64MiB"]
    daemon.refused("key.unreadable", *create, "--set", f"encryption_key_file={hanging.path('key')}", mentions=["10 s"])
    daemon(*create)
    hanging.resume()
    daemon.stop()

"""`forebay serve` with a configuration that is wrong in each of the ways that an operator makes, or beside a daemon
that has the same devices. It says on stderr what is wrong, where, and what to do; it writes the same to the service
manager; it ends with 1, or serves the rest with an alarm. It changes nothing."""

import base64
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.notices import Notices
from harness.wrong_start import EXPORT, Start


@pytest.fixture
def notices(folder: Path) -> Iterator[Notices]:
    listening = Notices(folder)
    yield listening
    listening.clean_up()


def make_start(
    folder: Path, make_daemon: Callable[..., Daemon], notices: Notices, port: int, name: str = "daemon"
) -> Start:
    w = folder / "w"
    w.mkdir(exist_ok=True)
    start = Start(make_daemon(name, at=w), notices, port)
    sparse(w / "db.img", 64 * MIB)
    sparse(w / "other.img", 64 * MIB)
    if not start.token.exists():
        start.token.write_bytes(base64.b64encode(os.urandom(32)))
        start.token.chmod(0o600)
    start.configure()
    return start


@pytest.fixture
def start(folder: Path, make_daemon: Callable[..., Daemon], notices: Notices, free_port: Callable[[], int]) -> Start:
    return make_start(folder, make_daemon, notices, free_port())


# A configuration that cannot be used


def second_volume(start: Start, name: str) -> str:
    volume = start.text[start.text.index("[volume.db]") :]
    return start.text + volume.replace("[volume.db]", f"[volume.{name}]")


def test_typo_in_key(start: Start) -> None:
    start.configure(start.text.replace("backing =", "backng ="))
    place = start.at("backng")
    text = start.text.replace("backing =", "backng =")
    start.cannot_be_used("config.unknown-key", text, "backng", "volume.db", place, "backing")
    start.cannot_be_used("config.missing", text, "volume.db", "backing")


def test_typo_in_value(start: Start) -> None:
    text = start.text + 'mode = "writebck"\n'
    start.configure(text)
    start.cannot_be_used("setting.value", text, start.at("writebck", column=8), "writeback")


def test_volume_twice(start: Start) -> None:
    text = second_volume(start, "db")
    start.configure(text)
    start.cannot_be_used("config.twice", text, "db", start.at("[volume.db]").rpartition(":")[0])


def test_disk_and_export_twice(start: Start) -> None:
    start.configure(second_volume(start, "two"))
    places = [start.at("backing =", column=11), start.at("exports =", column=12)]
    status = ["forebay config check", start.daemon.config_path.name]
    start.ends("config.conflict", ["db.img", places[0]], status)
    start.ends("config.conflict", ["db.sock", places[1]], status)
    found = start.daemon.json("config", "check", start.daemon.config_path, ok=False)["findings"]
    errors = [one for one in found if one["severity"] == "error"]
    assert [f"{start.daemon.config_path.name}:{one['line']}:{one['column']}" for one in errors] == places


def test_flash_device_twice(start: Start) -> None:
    text = start.text + f'[pool.two]\ndevices = ["{start.w}/flash.img"]\n'
    start.cannot_be_used("config.conflict", text, "flash.img", "fast")


def test_pool_that_is_not_there(start: Start) -> None:
    start.cannot_be_used("config.reference", start.text.replace('pool = "fast"', 'pool = "fst"'), "fst", "fast")


def test_no_configuration_file(start: Start) -> None:
    none = start.w / "none.toml"
    start.ends("cli.system", ["none.toml", "forebay config example"], ["none.toml"], none)


def test_configuration_file_is_not_text(start: Start) -> None:
    start.daemon.config_path.write_bytes(b"[\xff\xfe")
    start.ends("config.syntax", [start.daemon.config_path.name], [start.daemon.config_path.name])


# An API that cannot be served: no pool is opened for it


def test_token_that_all_may_read(start: Start) -> None:
    start.token.chmod(0o644)
    start.ends("api.listen", ["w/token", "0644", "chmod o="], ["w/token"])


def test_no_token(start: Start) -> None:
    start.token.unlink()
    start.ends("api.listen", ["w/token"], ["w/token"])


def test_short_token(start: Start) -> None:
    start.token.write_text("short\n")
    start.ends("api.listen", ["32", "1024", "head"], ["32"])


def test_no_folder_for_the_socket(start: Start) -> None:
    text = start.daemon.config_path.read_text().replace(f"{start.w}/admin.sock", f"{start.w}/none/admin.sock")
    start.daemon.config_path.write_text(text)
    start.ends("api.listen", [f"{start.w}/none"], [f"{start.w}/none"])


def test_port_that_another_program_has(start: Start) -> None:
    with socket.create_server(("127.0.0.1", start.port)):
        start.ends("api.listen", [f"127.0.0.1:{start.port}"], [start.port])


# What is missing: the rest is served, with an alarm


def test_disk_that_is_gone(start: Start) -> None:
    (start.w / "db.img").unlink()
    start.serves("device.missing", ["volume db", "w/db.img"], "volume.failed", "db.img")
    assert not (start.w / "db.img").exists()


def test_no_key(start: Start) -> None:
    start.configure(start.text.replace("[volume.db]", f'encryption_key_file = "{start.w}/key"\n[volume.db]'))
    start.serves("key.unreadable", ["pool fast", "w/key", "forebay pool open fast"], "pool.failed", "w/key")
    assert not (start.w / "flash.img").exists(), "a cache without its key was made"


def test_flash_device_that_is_gone(start: Start) -> None:
    start.daemon.start()
    start.daemon.stop()
    flash, kept = start.w / "flash.img", start.w / "flash.kept"
    flash.rename(kept)
    start.serves("cache.vanished", ["pool fast", "flash.img"], "pool.failed", "flash.img")
    assert not flash.exists(), "it was made"
    kept.rename(flash)
    start.daemon.start()
    assert start.daemon.alarms() == []
    start.daemon.stop()


def test_no_certificate(start: Start) -> None:
    export = f"nbds+unix:///db?socket={start.w}/db.sock&tls=lan"
    tls = f'\n[tls.lan]\ncert_file = "{start.w}/c.pem"\nkey_file = "{start.w}/k.pem"\n'
    start.configure(start.text.replace(EXPORT.format(w=start.w), export) + tls)
    start.serves("export.failed", ["c.pem"], "volume.failed", "c.pem")
    start.daemon.logged("export.failed", ["volume db", "forebay volume attach db"])


# Beside a daemon that has the same


@pytest.fixture
def first(start: Start) -> Iterator[Start]:
    """A daemon that runs, and is not disturbed."""
    start.daemon.start()
    yield start
    assert start.daemon.volume("db")["state"] == "serving"
    start.daemon.stop()


@pytest.fixture
def second(
    first: Start, folder: Path, make_daemon: Callable[..., Daemon], notices: Notices, free_port: Callable[[], int]
) -> Start:
    assert first.daemon.running.is_running
    return make_start(folder, make_daemon, notices, free_port(), "second")


def test_same_configuration(first: Start) -> None:
    said = first.ends("api.listen", [], [])
    place = next((one for one in (f"{first.daemon.admin}", f"127.0.0.1:{first.port}") if one in said), None)
    assert place, f"neither the socket nor the port: {said}"
    first.notices.has_status([place])


def test_same_socket_and_another_pool(first: Start, second: Start) -> None:
    daemon = f'[daemon]\nadmin_socket = "{first.daemon.admin}"\nstate_dir = "{second.w}/two"\n'
    pool = f'[pool.two]\ndevices = [{{ path = "{second.w}/two.img", size = "64MiB" }}]\n'
    second.daemon.config_path.write_text(daemon + pool)
    second.ends("api.listen", [first.daemon.admin], [first.daemon.admin])


def test_same_devices(first: Start, second: Start) -> None:
    second.admin_tcp = ""
    second.configure(second.text.replace("db.sock", "db2.sock"))
    pid = f"pid {first.daemon.pid}"
    second.serves("device.in-use", ["pool fast", "flash.img", pid], "pool.failed", pid)


def test_same_socket_of_an_export(first: Start, second: Start) -> None:
    second.admin_tcp = ""
    second.configure(second.text.replace("flash.img", "third.img").replace("db.img", "other.img"))
    second.serves("export.failed", ["volume db", "db.sock", "forebay volume attach db"], "volume.failed", "db.sock")
    assert first.daemon.pid

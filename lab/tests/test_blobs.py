"""The blob experiment: its grid, what it makes of what stores answer, that wrong blobs are seen, and runs of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
from requirements_java import need_java
from samples import Silent

import harness
from forebay_lab import blob_stores, blobs, cassandra, java, kafka, runner, store
from forebay_lab.blob_grid import BATCH_BYTES, KINDS, LENGTHS, Point, points
from forebay_lab.experiment import Lies, Results, Row, Scale, Work
from forebay_lab.ledger import Ledger

EXPERIMENT = blobs.Blobs()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with Ledger(tmp_path / "ledger") as ledger:
        yield Work(tmp_path, tmp_path, ledger, lambda _: None)


@pytest.mark.parametrize("kind", KINDS)
def test_one_parameter_is_varied_at_a_time(kind: str) -> None:
    found = points(kind, Scale.FULL)
    names = list(found)
    assert names[0] == "base"
    for name in names[1:]:
        parameter, value = name.split("=")
        changed = {key for key, new in asdict(found[name]).items() if new != asdict(found["base"])[key]}
        # Batches of large blobs are smaller: no store takes so many bytes at once.
        assert changed - {"batch"} <= {parameter}
        assert str(asdict(found[name])[parameter]) == value
        assert found[name].batch * found[name].size <= BATCH_BYTES


def test_a_batch_has_at_least_one_blob() -> None:
    assert Point(size=BATCH_BYTES + 1).fitting.batch == 1
    assert Point(size=100).fitting.batch == 256


def test_a_full_run_has_every_kind_on_every_back_end() -> None:
    names = [row.name for row in EXPERIMENT.rows(Scale.FULL)]
    assert len(names) == len(set(names)) == len(KINDS) * 3
    assert {"kafka-2-raw", "cassandra-sync-disk", "files-forebay"} <= set(names)


def test_holes_take_no_space(tmp_path: Path) -> None:
    with (tmp_path / "index").open("wb") as file:
        file.write(b"x" * 5000)
        file.truncate(10 << 20)
        os.fsync(file.fileno())
    assert 5000 <= blob_stores.disk_bytes([tmp_path]) <= 64 << 10


def test_space_that_is_only_reserved_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 5000)
    reserve = ["fallocate", "--keep-size", "--length=1MiB", str(tmp_path / "log")]
    if subprocess.run(reserve, capture_output=True, check=False).returncode:
        pytest.skip("this file system reserves nothing")
    assert blob_stores.disk_bytes([tmp_path]) == 8192


def test_two_brokers_know_each_other() -> None:
    said = kafka.settings(2, [(9001, 9002), (9003, 9004)], Path("/data/broker-2"))
    assert "controller.quorum.voters=1@127.0.0.1:9002,2@127.0.0.1:9004\n" in said
    assert "listeners=PLAINTEXT://127.0.0.1:9003,CONTROLLER://127.0.0.1:9004\n" in said
    assert "log.dirs=/data/broker-2\n" in said


def test_the_name_of_a_cluster_is_no_option() -> None:
    names = [kafka.cluster_id(bytes([first]) + bytes(15)) for first in range(256)]
    assert [name for name in names if name.startswith("-")] == []
    assert {len(name) for name in names} == {22}
    assert kafka.cluster_id(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"


def test_a_node_keeps_everything_in_its_folder() -> None:
    said = cassandra.settings("127.0.0.2", "127.0.0.1", 7000, 9042, Path("/data/node-2"), sync=True)
    assert "commitlog_sync: batch\n" in said
    assert 'seeds: "127.0.0.1:7000"' in said
    assert said.count('"/data/node-2/') == 5
    assert "periodic" in cassandra.settings("127.0.0.1", "127.0.0.1", 7000, 9042, Path("/d"), sync=False)


def results() -> Results:
    rows, samples = [], {}
    for where, stored in (("disk", 100.0), ("forebay", 400.0)):
        row = Row(f"kafka-{where}", 1, {"kind": "kafka", "backend": where, "scale": "quick"})
        lines = [
            {"point": "base", **asdict(Point()), "per_s": 500.0, "stored_per_s": stored, "bytes_per_blob": 183.0},
            {
                "point": "size=1000",
                **asdict(Point(1000)),
                "per_s": 50.0,
                "stored_per_s": 40.0,
                "bytes_per_blob": 1083.0,
            },
            {"point": "batch=32768", **asdict(Point(batch=32768)), "failed": "time-out"},
        ]
        rows.append(row)
        samples[row.name] = pd.DataFrame(lines)
    return Results(rows, samples, {})


def test_ratios_come_first_and_failures_are_said() -> None:
    table = EXPERIMENT.table(results()).set_index("store, point")
    base = table.loc["kafka base"]
    assert list(table.columns)[:2] == ["stored, Forebay / disk", "stored, Forebay / raw"]
    assert (base["stored, Forebay / disk"], base["stored, Forebay / raw"]) == ("4.00", "-")
    assert (base["acknowledged/s disk"], base["bytes a message"]) == ("500", "183")
    assert table.loc["kafka batch=32768"]["bytes a message"] == "failed"


def test_drawings_leave_failures_out() -> None:
    assert [picture.name for picture in EXPERIMENT.pictures(results())] == ["by-size"]


POINT = Point(size=1000, batch=8, connections=2, consistency="sync")


def load(program: java.Program, point: Point, blobs_: int) -> java.Answer:
    return program.ask({"do": "load", "name": "p", **asdict(point), "blobs": blobs_, "seconds": 30}, 60)


def test_wrong_and_missing_blobs_are_lies(work: Work) -> None:
    need_java()
    for harm, said in ((corrupt, "checksum"), (cut, "left in its segment"), (Path.unlink, "the first that is missing")):
        data = work.folder / harm.__name__
        data.mkdir()
        with blob_stores.loader(KINDS["files"], data, work) as program:
            assert load(program, POINT, 100)["blobs"] == 100
            assert program.ask({"do": "verify", "bytes": 0}, 60) == {"verified": 100}
            harm(sorted((data / "p").iterdir())[0])
            with pytest.raises(Lies, match=said):
                program.ask({"do": "verify", "bytes": 0}, 60)


def corrupt(file: Path) -> None:
    """Changes a bit."""
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    """Loses the end."""
    os.truncate(file, file.stat().st_size - 1)


def test_what_a_store_cannot_do_is_a_result(work: Work) -> None:
    need_java()
    with blob_stores.loader(KINDS["files"], work.folder, work) as program:
        answer = load(program, replace(POINT, consistency="sometimes"), 10)
        assert "sometimes" in str(answer["failed"])


@pytest.mark.parametrize("kind", ["kafka", "cassandra"])
def test_servers_on_a_folder(kind: str, work: Work) -> None:
    """Every blob goes in and comes back; afterwards no process is left."""
    need_java()
    length = replace(LENGTHS[Scale.SMOKE], point_s=30)
    data = work.folder / "data"
    data.mkdir()
    with blob_stores.loader(KINDS[kind], data, work) as program:
        line = blobs.measure(blobs.Run(KINDS[kind], data, program, length), "p", points(kind, Scale.SMOKE)["base"])
    assert line["verified"] == line["blobs"] == length.blobs
    assert float(line["bytes_per_blob"]) > 0
    assert [entry for entry in work.ledger.entries if entry.kind == "process"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root")
def test_a_smoke_run(tmp_path: Path) -> None:
    need_java()
    if not harness.FOREBAY.exists():
        pytest.skip(f"there is no {harness.FOREBAY}: cargo build --release")
    if not Path("/dev/loop-control").exists() or not Path("/dev/fuse").exists():
        pytest.skip("there is no loop device, or no FUSE here")
    rows = [row for row in EXPERIMENT.rows(Scale.SMOKE) if row.name == "files-forebay"]
    run = store.begin(tmp_path / "runs", "blobs", Scale.SMOKE, rows, {}, {})
    runner.go(EXPERIMENT, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 1), Silent())
    assert run.kept["files-forebay"].summary["verified"] == LENGTHS[Scale.SMOKE].blobs
    assert len(EXPERIMENT.table(run.results())) == 1

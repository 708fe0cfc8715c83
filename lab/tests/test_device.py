"""The device experiment: what it refuses, what it makes of fio's output, and a run of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from samples import Silent

from forebay_lab import device, fio, runner, store
from forebay_lab.experiment import Lies, Refused, Results, Scale
from forebay_lab.ledger import Ledger


def side(done: int, count: int) -> dict[str, object]:
    """What fio says of one direction."""
    spread = {"mean": 2000.0, "max": 9000, "percentile": {"95.000000": 4000, "99.000000": 8000}}
    return {"io_bytes": done, "total_ios": count, "runtime": 2000, "clat_ns": spread}


def test_totals() -> None:
    totals = fio.parse({"jobs": [{"error": 0, "read": side(4 << 20, 256), "write": side(0, 0)}]})
    assert (totals.mib_s, totals.operations) == (2.0, 256)
    assert (totals.mean_us, totals.p95_us, totals.p99_us, totals.max_us) == (2.0, 4.0, 8.0, 9.0)


def test_errors_and_nothing_are_lies() -> None:
    with pytest.raises(Lies, match="error"):
        fio.parse({"jobs": [{"error": 5, "read": side(0, 0), "write": side(1, 1)}]})
    with pytest.raises(Lies, match="nothing"):
        fio.parse({"jobs": [{"error": 0, "read": side(0, 0), "write": side(0, 0)}]})
    with pytest.raises(Lies, match="to verify"):
        fio.parse({"jobs": [{"error": 0, "read": side(4096, 1), "write": side(8192, 2)}]})


def test_samples_of_several_threads_are_added_up(tmp_path: Path) -> None:
    log = tmp_path / "bw.log"
    log.write_text("1000, 1024, 0, 16384, 0\n1001, 3072, 0, 16384, 0\n2000, 512, 0, 16384, 0\n")
    assert fio.samples(log).to_dict("list") == {"t_s": [1, 2], "mib_s": [4.0, 0.5]}


def test_wrong_data_is_a_lie(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    check = {"filename": str(path), "rw": "read", "bs": "16k", "size": 1 << 20, "verify": "crc32c", "verify_fatal": 1}
    with Ledger(tmp_path / "ledger") as ledger, pytest.raises(Lies):
        fio.run(check, tmp_path, ledger, lambda _: None)


def test_what_holds_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match="name its folder"):
        device.on(tmp_path / "file", destroy=True)
    with pytest.raises(Refused, match="does not exist"):
        device.on(tmp_path / "nothing", destroy=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root")
def test_a_device_in_use_is_refused_whatever_is_allowed(tmp_path: Path) -> None:
    image, mount = tmp_path / "image", tmp_path / "mnt"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    made = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device here: {made.stderr.strip()}")
    loop = Path(made.stdout.strip())
    try:
        with pytest.raises(Refused, match="--destroy-data"):
            device.on(loop, destroy=False)
        assert device.on(loop, destroy=True).target == loop
        subprocess.run(["mount", loop, mount], check=True)
        try:
            with pytest.raises(Refused, match="in use"):
                device.on(loop, destroy=True)
        finally:
            subprocess.run(["umount", mount], check=True)
    finally:
        subprocess.run(["losetup", "-d", loop], check=True)


def test_a_smoke_run_measures_every_row(tmp_path: Path) -> None:
    trial = ["fio", "--name=trial", "--rw=write", "--size=16k", "--direct=1", f"--directory={tmp_path}"]
    done = subprocess.run([*trial, "--ioengine=io_uring"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no io_uring, or no direct I/O here: {done.stderr.strip()[-200:]}")
    results, experiment = smoke(tmp_path, tmp_path, ("verify", "randread-sync-004", "write-sync-004", "warm-up"))
    assert results.summaries["verify"]["verified_mib"] == 16
    assert float(results.summaries["randread-sync-004"]["mib_s"]) > 0
    table = experiment.table(results)
    assert table["row"].tolist() == ["randread-sync-004", "write-sync-004", "warm-up"]
    assert table["to its best"].tolist() == ["1.00"] * 3
    assert {picture.name for picture in experiment.pictures(results)} == {"sweep-sync", "warm-up"}
    assert not [row for row in experiment.rows(Scale.FULL) if "full" in row.parameters], "a file cannot be full"


@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root")
def test_a_block_device_is_measured_by_how_full_it_is(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    made = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device here: {made.stderr.strip()}")
    loop = Path(made.stdout.strip())
    try:
        results, experiment = smoke(tmp_path, loop, ("full-050",))
        assert results.summaries["full-050"]["discarded"] == "yes"
        assert results.rows[0].parameters["mib"] == 32, "the whole device, whatever the sweeps use"
        assert image.stat().st_blocks * 512 <= 17 << 20, "the rest of it was not written"
        assert {picture.name for picture in experiment.pictures(results)} == {"full"}
    finally:
        subprocess.run(["losetup", "-d", loop], check=True)


def smoke(tmp_path: Path, target: Path, names: tuple[str, ...]) -> tuple[Results, device.Device]:
    """Measures some rows."""
    experiment = device.Device(target)
    rows = [row for row in experiment.rows(Scale.SMOKE) if row.name in names]
    run = store.begin(tmp_path / "runs", "device", Scale.SMOKE, rows, {}, {})
    runner.go(experiment, run, runner.Place(tmp_path / "work", tmp_path / "ledger", 1), Silent())
    return run.results(), experiment

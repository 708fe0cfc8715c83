"""The FlashCache model, over NBD and FUSE: fio verifies what it wrote while a small cache is cleaned and replaced
under it, and again from an empty cache after an orderly stop, when everything must be on the disk. What it cannot use
is refused."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.clients import fio, fio_speaks_nbd, need
from harness.command import BINARY, ROOT, Forebay, Result
from harness.daemon import Served
from harness.devices import MIB, Devices, random_file, sparse
from harness.mounts import abort_fuse

MODEL = Path(os.environ.get("FLASHCACHE_MODEL", BINARY.parent / "flashcache-model"))
if not MODEL.exists():
    MODEL = ROOT / "target/debug/flashcache-model"
SIZES = ["--rw=randwrite", "--bsrange=512-64k", "--blockalign=512"]
WRITTEN = ["--iodepth=16", "--size=48M"]


class Model(Served):
    """One volume on `backing.img`, with the statistics of its last orderly stop in `stats.json`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "model")
        self.program = Forebay(folder, binary=MODEL)
        self.backing = sparse(folder / "backing.img", 64 * MIB)
        self.cache = folder / "cache.img"
        self.uri = f"nbd+unix:///vol?socket={folder}/nbd.sock"
        self.nbd = ["--ioengine=nbd", f"--uri={self.uri}"]

    def start(self, *options: str, export: str | None = None) -> None:
        stores = ["--backing", f"file:{self.backing}", "--cache", f"{self.cache}:16MiB"]
        stats = ["--stats", self.folder / "stats.json"]
        process = self._spawn(self.program, [*stores, "--export", export or self.uri, *stats, *options])
        self.wait_for(lambda: process.stdout().startswith("ready: "), "the model serves")

    def stats(self) -> Any:
        return json.loads((self.folder / "stats.json").read_text())

    def job(self, name: str, *options: str) -> None:
        fio(self.folder, name, *WRITTEN, *options)

    def refused(self, code: int, *options: str) -> Result:
        """It must end by itself with this exit code."""
        stores = ["--backing", f"file:{self.backing}", "--export", self.uri]
        result = self.program(*stores, *options, ok=False)
        assert result.code == code, result.describe()
        return result


@pytest.fixture
def model(folder: Path, devices: Devices) -> Iterator[Model]:
    need("fio")
    if not MODEL.exists():
        pytest.skip(f"no binary at {MODEL}: cargo build -p forebay-flashcache-model, or set FLASHCACHE_MODEL")
    devices.at_exit(lambda: abort_fuse(folder))
    made = Model(folder)
    yield made
    made.clean_up()


@pytest.fixture
def fio_over_nbd() -> None:
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["back", "through", "around"])
def test_data_is_right_in_each_mode(model: Model, fio_over_nbd: None, mode: str) -> None:
    del fio_over_nbd
    model.start("--mode", mode, "--assoc", "256")
    model.job(f"write-{mode}", *model.nbd, *SIZES, "--do_verify=1")
    model.stop()
    assert model.stats()["dirty_blocks"] == 0, "blocks are dirty after the stop"
    assert model.stats()["reads"] > 0, "nothing was counted"
    model.start("--mode", mode, "--assoc", "256")
    # The same jobs by their names: fio compares with what the first one wrote.
    model.job(f"verify-{mode}", *model.nbd, *SIZES, "--verify_only=1")
    model.stop()


@pytest.mark.heavy
def test_mixed_requests(model: Model, fio_over_nbd: None) -> None:
    """Reads and writes mixed, discards between them, LRU, flushes that reach the devices."""
    del fio_over_nbd
    model.start("--reclaim", "lru", "--flush", "device", "--fallow-delay", "1")
    shape = ["--rw=randrw", "--bsrange=512-64k", "--blockalign=512", "--do_verify=1", "--fsync=32"]
    model.job("mixed", *model.nbd, *shape)
    model.job("trims", *model.nbd, "--rw=randtrim", "--bs=64k", "--verify=null", "--io_size=4M")
    model.stop()


def test_start_after_kill_is_empty(model: Model) -> None:
    model.start()
    model.stop()
    before = model.running.stderr()
    model.start()
    model.kill()
    model.start()
    assert len(model.running.stderr()) > len(before), "the lost data is not mentioned"
    model.stop()


@pytest.mark.heavy
def test_file_over_fuse(model: Model, fuse: None, folder: Path) -> None:
    del fuse
    file = folder / "mounted/vol"
    model.start(export=f"fuse:{file}")
    model.job("fuse", f"--filename={file}", "--ioengine=psync", *SIZES, "--do_verify=1", "--end_fsync=1")
    model.stop()
    assert not file.exists()
    model.job("fuse", f"--filename={model.backing}", "--ioengine=psync", *SIZES, "--verify_only=1")


def test_wrong_input_is_refused(model: Model, folder: Path) -> None:
    cache = ["--cache", str(model.cache)]
    assert "dirty_thresh_pct" in model.refused(2, *cache, "--dirty-thresh-pct", "5").stderr
    assert "assoc is 300" in model.refused(2, *cache, "--assoc", "300").stderr
    refused = model.refused(2, *cache, "--mode", "sideways").stderr
    assert all(mode in refused for mode in ("sideways", "back", "through", "around")), refused
    foreign = random_file(folder / "foreign", MIB)
    before = foreign.read_bytes()
    assert str(foreign) in model.refused(1, "--cache", str(foreign)).stderr
    assert foreign.read_bytes() == before
    assert str(folder / "none.img") in model.refused(1, "--cache", f"{folder}/none.img").stderr
    assert "512" in model.refused(1, "--cache", f"{folder}/tiny.img:1MiB").stderr

"""fio writes with checksums at many block sizes and verifies them: at once, and again after a restart of the daemon."""

import pytest
from harness.clients import fio_nbd, need
from harness.daemon import RunVolume
from harness.devices import MIB

SIZES = {
    "512": ["--bs=512", "--size=8M"],
    "4k": ["--bs=4k", "--size=32M"],
    "16k": ["--bs=16k", "--size=32M"],
    "128k": ["--bs=128k", "--size=64M"],
    "mixed": ["--bsrange=512-128k", "--blockalign=512", "--size=48M"],
}


def job(volume: RunVolume, *options: str) -> None:
    fio_nbd(volume.folder, "job", volume.uri, "--iodepth=16", *options).succeeds()


@pytest.mark.heavy
@pytest.mark.parametrize("size", SIZES)
def test_what_fio_wrote_stays(volume: RunVolume, size: str) -> None:
    need("fio")
    volume.make_backing(128 * MIB)
    options = ["--rw=randwrite", "--offset=32M", *SIZES[size]]
    volume.start()
    job(volume, *options, "--do_verify=1")
    volume.stop()
    volume.start()
    job(volume, *options, "--verify_only=1")
    volume.stop()


@pytest.mark.heavy
def test_reads_and_writes_mixed(volume: RunVolume) -> None:
    need("fio")
    volume.make_backing(128 * MIB)
    volume.start()
    job(volume, "--rw=randrw", "--bsrange=512-64k", "--blockalign=512", "--size=48M", "--do_verify=1")
    volume.stop()

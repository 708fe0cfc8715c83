"""A whole image is copied in and out, with several connections, more than the cache holds, and after a restart."""

from pathlib import Path

from harness.clients import need
from harness.command import run
from harness.daemon import RunVolume
from harness.devices import assert_same, random_file

SIZE = 192 << 20


def test_image_is_the_same_after_copies(volume: RunVolume, folder: Path) -> None:
    need("nbdcopy")
    volume.make_backing(SIZE)
    image = random_file(folder / "in", SIZE)
    volume.start()
    run(["nbdcopy", "--connections=4", "--flush", image, volume.uri])
    run(["nbdcopy", "--connections=4", volume.uri, folder / "out"])
    assert_same(image, folder / "out", "copied in and out")
    volume.stop()
    volume.start()
    run(["nbdcopy", volume.uri, folder / "again"])
    assert_same(image, folder / "again", "after a restart")
    volume.stop()

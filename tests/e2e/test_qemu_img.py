"""qemu-img: convert an image onto the volume and back, sparse parts included, and compare."""

from pathlib import Path

from harness.clients import need
from harness.command import run
from harness.daemon import RunVolume
from harness.devices import MIB, random_file, sparse

SIZE = 128 * MIB


def compare(image: Path, other: Path | str, kind: str = "raw") -> None:
    run(["qemu-img", "compare", "-f", "raw", "-F", kind, image, other])


def test_image_is_the_same_after_conversion(volume: RunVolume, folder: Path) -> None:
    need("qemu-img")
    volume.make_backing(SIZE)
    image = sparse(folder / "image.raw", SIZE)
    part = random_file(folder / "part", 16 * MIB).read_bytes()
    with image.open("r+b") as file:
        for offset in (3 * MIB, 512 * 150001):
            file.seek(offset)
            file.write(part)
    run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", image, folder / "image.qcow2"])

    volume.start()
    run(["qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", folder / "image.qcow2", volume.uri])
    compare(image, volume.uri)
    run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", volume.uri, folder / "back.qcow2"])
    compare(image, folder / "back.qcow2", "qcow2")
    volume.stop()
    volume.start()
    compare(image, volume.uri)
    volume.stop()

"""A cache device was replaced, and vanished before it was erased. Another host, which knows nothing of the cache,
finds it beside the other devices, in place of the new one. Once the pool was started again, that host does not
believe it."""

import json
import shutil
from pathlib import Path

import pytest
from harness.command import Result
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.pools import empty_folder, note_replaced, replaced_list
from harness.waiting import eventually

VOLUME = '[volume.vol]\npool = "fast"\nbacking = "file:{folder}/vol.img"\nexports = ["{nbd}"]\nidle_delay = "off"\n'


def start(daemon: Daemon, sizes: dict[str, str], line: str) -> None:
    """Pool `fast` on these files."""
    sparse(daemon.folder / "vol.img", 32 * MIB)
    entries = ", ".join(f'{{ path = "{daemon.folder}/{name}.img", size = "{size}" }}' for name, size in sizes.items())
    volume = VOLUME.format(folder=daemon.folder, nbd=daemon.nbd())
    daemon.configure(f"[pool.fast]\ndevices = [{entries}]\n{line}\n{volume}")
    daemon.start()


def image(daemon: Daemon, name: str) -> Path:
    return daemon.folder / f"{name}.img"


def replace(daemon: Daemon, old: str, new: str, size: str) -> None:
    """Replaces a device, of which a copy stays as gone-OLD, as if it had vanished meanwhile."""
    shutil.copyfile(image(daemon, old), image(daemon, f"gone-{old}"))
    daemon("pool", "replace", "fast", "--old", image(daemon, old), "--device", f"{image(daemon, new)}:{size}")
    image(daemon, old).unlink()


def write_onto(daemon: Daemon, new: str, old: str, seed: int) -> None:
    """Writes until much of the new device is not what the old one has, and then until the log goes on beyond it on
    another device, if there is one: on a busy machine that takes a while."""

    def chunks(path: Path) -> list[int]:
        with path.open("rb") as file:
            return [hash(chunk) for chunk in iter(lambda: file.read(65536), b"")]

    def write_until_differs(path: Path, from_what: list[int], count: int) -> None:
        def differs() -> bool:
            daemon.oracle().write(1, seed=seed)
            return sum(ours != theirs for ours, theirs in zip(chunks(path), from_what, strict=False)) >= count

        eventually(differs, 120, f"{path} has {count} chunks that it had not")

    write_until_differs(image(daemon, new), chunks(image(daemon, f"gone-{old}")), 64)
    devices = [Path(device["path"]) for device in daemon.pool("fast")["devices"]]
    for other in [path for path in devices if path != image(daemon, new)][:1]:
        write_until_differs(other, chunks(other), 16)


def elsewhere(daemon: Daemon, *names: str) -> Result:
    """What another host says of these devices, after a crash of this one."""
    paths = [image(daemon, name) for name in names]
    return daemon.forebay("check", *paths, "--state-dir", empty_folder(daemon.folder), ok=False)


def is_believed_elsewhere(daemon: Daemon, *names: str) -> None:
    result = elsewhere(daemon, *names)
    assert result.code == 0, result.describe()


def left_behind(daemon: Daemon, old: str, new: str) -> None:
    """The daemon was killed when it had not yet noted more than that OLD was replaced by NEW; it starts, and dies
    again."""
    note_replaced(daemon, image(daemon, old), image(daemon, new))
    daemon.start()
    listed = lambda: json.loads(replaced_list(daemon).read_text())["pairs"][0]["left_behind"]  # noqa: E731
    eventually(listed, 20, "the list says that it was left behind")
    daemon.oracle().verify(f"after {old} was replaced")
    daemon.kill()


@pytest.fixture
def three(daemon: Daemon) -> Daemon:
    """Pool `fast` on a, b and c."""
    start(daemon, {"a": "24MiB"}, 'segment_size = "256KiB"')
    for name in "bc":
        daemon("pool", "grow", "fast", "--device", f"{image(daemon, name)}:17MiB")
    daemon.oracle().write(1, seed=1)
    return daemon


@pytest.mark.heavy
def test_second_of_three_devices(three: Daemon) -> None:
    replace(three, "b", "b2", "17MiB")
    write_onto(three, "b2", "b", seed=2)
    three.kill()
    # Before the next start nothing tells that it was replaced.
    before = elsewhere(three, "a", "gone-b", "c")
    assert before.code != 0, "an old copy passes for a whole cache"
    left_behind(three, "b", "b2")
    text = [str(image(three, "gone-b"))]
    after = three.forebay.refused("cache.member-removed", "check", *devices(three, "a", "gone-b", "c"), mentions=text)
    assert after.what not in before.stdout + before.stderr, before.describe()
    is_believed_elsewhere(three, "a", "b2", "c")


@pytest.mark.heavy
def test_first_of_three_devices(three: Daemon) -> None:
    replace(three, "a", "a2", "24MiB")
    write_onto(three, "a2", "a", seed=3)
    three.kill()
    left_behind(three, "a", "a2")
    # What it says of the others is what it believes.
    three.forebay.refused(
        "cache.member-removed", "check", *devices(three, "gone-a", "b", "c"), mentions=[image(three, "b")]
    )
    is_believed_elsewhere(three, "a2", "b", "c")


def devices(daemon: Daemon, *names: str) -> list[object]:
    """Words of `forebay check` on a host without a record of the cache."""
    return [*(image(daemon, name) for name in names), "--state-dir", empty_folder(daemon.folder)]


def generation(daemon: Daemon, name: str) -> int:
    """The newest of the superblocks."""
    inspected = daemon.forebay.json("inspect", image(daemon, name))
    return max(numbers(inspected))


def numbers(value: object) -> list[int]:
    """All that is called `generation`."""
    if isinstance(value, list):
        return [number for entry in value for number in numbers(entry)]
    if not isinstance(value, dict):
        return []
    own = [value["generation"]] if isinstance(value.get("generation"), int) else []
    return own + numbers(list(value.values()))


@pytest.mark.heavy
def test_device_of_a_mirrored_pool(daemon: Daemon) -> None:
    start(daemon, {"m": "48MiB", "n": "48MiB"}, 'mirror = "on"')
    daemon.oracle().write(1, seed=4)
    replace(daemon, "n", "o", "48MiB")
    daemon.kill()
    left_behind(daemon, "n", "o")
    apart = generation(daemon, "m") - generation(daemon, "gone-n")
    assert apart > 1, f"its superblock is behind by {apart} only"

"""A pool is created with all of its devices, or not at all: then nothing of them is written or in use, nothing is
configured, and nothing is recorded. So it is with a volume and its exports."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.agreement import agree
from harness.api import ApiError
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, checksum, random_file, sparse
from harness.waiting import eventually

SIZE = 16 * MIB


def fill(rest: Path) -> None:
    """A file that takes all room of its file system."""
    with pytest.raises(OSError), rest.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


class Untouched:
    """A daemon without pools, and devices that it must not change."""

    def __init__(self, daemon: Daemon, devices: Devices) -> None:
        self.daemon = daemon
        self.devices = devices
        self.folder = daemon.folder
        daemon.configure("")
        daemon.start()
        self.text = daemon.config_path.read_text().rstrip()

    def blank(self, name: str, size: int = SIZE) -> Path:
        """A block device that holds nothing."""
        return self.devices.loop(sparse(self.folder / f"{name}.img", size))

    def refused(self, id: str, *devices: object, more: tuple[str, ...] = (), late: bool = False) -> None:
        """Creating a pool on these devices is refused; everything is as it was. `late`: it could only be told by
        writing, so what was written is given up."""
        there = [Path(str(device)) for device in devices if Path(str(device)).exists()]
        before = {path: checksum(path) for path in there}
        recorded = self.recorded()
        words = [word for device in devices for word in ("--device", device)]
        self.daemon.refused(id, "pool", "create", "fast", *more, *words)
        for path in there:
            self.is_free(path)
            assert late or checksum(path) == before[path], f"{path} was written to"
        for device in devices:
            path = Path(str(device).rpartition(":")[0] or str(device))
            assert path.exists() == (path in there), f"{path} was made, or is gone"
        assert self.daemon.config_path.read_text().rstrip() == self.text
        assert self.daemon.api.get("/v1/pools") == []
        assert self.recorded() == recorded

    def recorded(self) -> list[str]:
        """What is recorded of caches."""
        folders = (self.daemon.state_dir / "caches", self.daemon.state_dir / "mirrors")
        return sorted(path.name for folder in folders if folder.is_dir() for path in folder.iterdir())

    def is_free(self, device: Path) -> None:
        """Nobody has it open, in a moment: who lets it go may take one."""
        holders = lambda: run(["fuser", str(device)], ok=False).code != 0  # noqa: E731
        eventually(holders, 20, f"nobody has {device} open")

    def created(self, *devices: object, more: tuple[str, ...] = ()) -> None:
        """The same pool can be created on devices that are good, without a question, and is there after a restart."""
        words = [word for device in devices for word in ("--device", device)]
        self.daemon("pool", "create", "fast", *more, *words)
        assert len(self.daemon.pool("fast")["devices"]) == len(devices)
        self.daemon.restart()
        assert len(self.daemon.pool("fast")["devices"]) == len(devices)
        self.daemon.stop()


@pytest.fixture
def untouched(daemon: Daemon, devices: Devices, root: None) -> Untouched:
    del root
    return Untouched(daemon, devices)


def missing(untouched: Untouched) -> tuple[str, object]:
    return "device.missing", f"{untouched.folder}/no-such-folder/b.img:16MiB"


def without_a_size(untouched: Untouched) -> tuple[str, object]:
    return "cache.missing", untouched.folder / "b.img"


def too_small(untouched: Untouched) -> tuple[str, object]:
    return "device.too-small", untouched.blank("small", MIB)


def with_data(untouched: Untouched) -> tuple[str, object]:
    return "cache.foreign-data", untouched.devices.loop(random_file(untouched.folder / "data.img", SIZE, seed=1))


def read_only(untouched: Untouched) -> tuple[str, object]:
    return "device.write-protected", untouched.devices.loop(sparse(untouched.folder / "ro.img", SIZE), "--read-only")


def full_file_system(untouched: Untouched) -> tuple[str, object]:
    return "cache.no-space", f"{untouched.devices.tmpfs('tmpfs', '1m')}/b.img:16MiB"


def write_error(untouched: Untouched) -> tuple[str, object]:
    """It reads as zeroes and takes no write: its file system is full."""
    folder = untouched.devices.tmpfs("tmpfs", "1m")
    device = untouched.devices.loop(sparse(folder / "b.img", SIZE))
    fill(folder / "rest")
    return "device.io", device


UNUSABLE: list[Callable[[Untouched], tuple[str, object]]] = [
    missing,
    without_a_size,
    too_small,
    with_data,
    read_only,
    full_file_system,
    write_error,
]


@pytest.mark.parametrize("unusable", UNUSABLE, ids=lambda unusable: unusable.__name__)
@pytest.mark.parametrize("first", ["file", "device"])
def test_second_device_cannot_be_used(
    untouched: Untouched, unusable: Callable[[Untouched], tuple[str, object]], first: str
) -> None:
    id, second = unusable(untouched)
    a = f"{untouched.folder}/a.img:16MiB" if first == "file" else untouched.blank("a")
    untouched.refused(id, a, second)
    untouched.created(a, untouched.blank("c"))


def test_mirrored_pool_with_a_device_that_takes_no_write(untouched: Untouched) -> None:
    id, second = write_error(untouched)
    a = untouched.blank("a")
    untouched.refused(id, a, second, more=("--mirror",), late=True)
    untouched.created(a, untouched.blank("c"), more=("--mirror",))


def test_same_device_twice(untouched: Untouched) -> None:
    a = untouched.blank("a")
    (untouched.folder / "link").symlink_to(a)
    untouched.refused("device.twice", a, untouched.folder / "link")
    untouched.created(a)


@pytest.mark.parametrize("mirror", [(), ("--mirror",)], ids=["single", "mirrored"])
def test_cache_that_cannot_be_recorded(daemon: Daemon, devices: Devices, root: None, mirror: tuple[str, ...]) -> None:
    del root
    state = devices.tmpfs(daemon.state_dir.name, "256k")
    untouched = Untouched(daemon, devices)
    a, b = untouched.blank("a"), untouched.blank("b")
    rest = state / "rest"
    fill(rest)
    untouched.refused("state.unwritable", a, b, more=mirror, late=True)
    rest.unlink()
    untouched.created(a, b, more=mirror)


def test_configuration_that_cannot_be_written(daemon: Daemon, devices: Devices, root: None) -> None:
    del root
    folder = devices.tmpfs("etc", "64k")
    daemon.config_path = folder / "forebay.toml"
    untouched = Untouched(daemon, devices)
    a, b = untouched.blank("a"), untouched.blank("b")
    fill(folder / "rest")
    untouched.refused("config.unreadable", a, b)
    untouched.refused("config.unreadable", f"{daemon.folder}/c.img:16MiB")
    (folder / "rest").unlink()
    untouched.created(a, b)


def test_cache_that_is_there_and_a_device_that_is_not(untouched: Untouched) -> None:
    """What a removed pool has left on its device stays, and can be created as it is."""
    a = untouched.blank("a")
    untouched.daemon("pool", "create", "fast", "--device", a)
    cache = untouched.daemon.pool("fast")["recorded"]["cache"]
    untouched.daemon("pool", "remove", "fast")
    words = ("--device", a, "--device", f"{untouched.folder}/no-such-folder/b.img:16MiB")
    untouched.daemon.refused("device.missing", "pool", "create", "fast", *words)
    assert untouched.daemon.config_path.read_text().rstrip() == untouched.text
    assert untouched.daemon.api.get("/v1/pools") == []
    untouched.daemon("pool", "create", "other", "--device", a)
    assert untouched.daemon.pool("other")["recorded"]["cache"] == cache
    untouched.daemon.stop()


def test_volume_whose_exports_cannot_be_made(daemon: Daemon) -> None:
    """Who asked hears of it when it is undone: it can be asked for again at once, with another export."""
    devices = f'[pool.fast]\ndevices = [{{ path = "{daemon.folder}/flash.img", size = "16MiB" }}]\n'
    daemon.configure(devices)
    daemon.start()
    before = agree(daemon, ("vm",), "before")
    store = sparse(daemon.folder / "vm.img", SIZE)
    nowhere = f"nbd+unix:///vm?socket={daemon.folder}/no-such-folder/vm.sock"
    request = {"name": "vm", "pool": "fast", "backing": f"file:{store}", "exports": [daemon.nbd("vm"), nowhere]}
    for number in range(5):
        with pytest.raises(ApiError) as refused:
            daemon.api.post("/v1/volumes", request)
        assert refused.value.id == "export.failed"
        assert agree(daemon, ("vm",), f"refused {number}") == before
        assert daemon.pool("fast")["volumes"] == [] and not daemon.socket("vm").exists()
    daemon.api.post("/v1/volumes", {**request, "exports": [daemon.nbd("vm")]})
    agree(daemon, ("vm",), "attached")
    daemon.stop()

"""A file or device that somebody else uses is no backing store and no cache: a loop device lies on it, mounted or not,
or a program has it open for writing. What is served is refused by QEMU and whoever else asks for locks."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.nbd import Client
from harness.process import Process
from harness.waiting import eventually

POOL = '[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n'

# Makes somebody use a file; returns what the refusal must name, and what makes him stop.
Use = Callable[[Path], tuple[list[object], Callable[[], object]]]


@pytest.fixture
def serving(daemon: Daemon, folder: Path) -> Daemon:
    daemon.configure(POOL.format(folder=folder))
    daemon.start()
    return daemon


def needs_root(*programs: str) -> None:
    need(*programs)
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")


def lets_go(loop: Path) -> None:
    run(["losetup", "--detach", loop])
    bound = Path("/sys/block", loop.name, "loop")
    eventually(lambda: not bound.exists(), 20, f"{loop} is free")


WRITER = "import signal, sys; file = open(sys.argv[1], 'r+b'); signal.pause()"


@pytest.fixture(params=["loop", "read-only loop", "mounted", "qemu-nbd", "qemu reads", "nbdkit", "writer"])
def use(request: pytest.FixtureRequest, devices: Devices, folder: Path) -> Use:
    def by_loop(file: Path, *options: str) -> tuple[list[object], Callable[[], object]]:
        needs_root("losetup")
        loop = devices.loop(file, *options)
        return [loop], lambda: lets_go(loop)

    def by_mount(file: Path) -> tuple[list[object], Callable[[], object]]:
        needs_root("mkfs.ext4", "losetup")
        run(["mkfs.ext4", "-q", file])
        loop = devices.loop(file)
        at = devices.mount(str(loop), at=folder / "mnt")

        def stop() -> None:
            run(["umount", at])
            lets_go(loop)

        return [loop, at], stop

    def by_program(file: Path, *command: object) -> tuple[list[object], Callable[[], object]]:
        need(str(command[0]))
        # A prompt that nobody answers.
        inlet, outlet = os.pipe()
        devices.at_exit(lambda: os.close(outlet))
        process = Process([str(word) for word in command], folder / "user.err", stdin=inlet)
        os.close(inlet)
        devices.at_exit(process.kill)
        eventually(lambda: is_open(process.pid, file), 30, f"{command[0]} has {file} open")
        return [process.pid], process.kill

    def by_nbdkit(file: Path) -> tuple[list[object], Callable[[], object]]:
        """It has the file open as long as it has a client."""
        need("nbdkit")
        process = Process(["nbdkit", "-f", "-U", socket, "file", file], folder / "user.err")
        devices.at_exit(process.kill)
        client = eventually(lambda: connected(socket), 30, "nbdkit accepts a client")
        devices.at_exit(client.close)
        eventually(lambda: is_open(process.pid, file), 30, f"nbdkit has {file} open")
        return [process.pid], process.kill

    socket = folder / "user.sock"
    uses: dict[str, Use] = {
        "loop": by_loop,
        "read-only loop": lambda file: by_loop(file, "--read-only"),
        "mounted": by_mount,
        "qemu-nbd": lambda file: by_program(file, "qemu-nbd", "-t", "-f", "raw", "-k", socket, file),
        "qemu reads": lambda file: by_program(file, "qemu-io", "-r", "-f", "raw", file),
        "nbdkit": by_nbdkit,
        "writer": lambda file: by_program(file, "python3", "-c", WRITER, file),
    }
    return uses[request.param]


def connected(socket: Path) -> Client | None:
    """A client of it; `None` as long as nothing listens there, the file of the socket or not."""
    try:
        return Client(str(socket), "")
    except (ConnectionRefusedError, FileNotFoundError):
        return None


def is_open(pid: int, file: Path) -> bool:
    """Whether a process has the file open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(entry.readlink())
        except OSError:
            continue
    return file in found


def test_backing_store_in_use_is_refused(serving: Daemon, use: Use, folder: Path) -> None:
    image = sparse(folder / "disk.img", 64 * MIB)
    who, stop = use(image)
    attach = ["volume", "attach", "db", "--backing", f"file:{image}", "--export", serving.nbd("db")]
    serving.refused("device.in-use", *attach, mentions=[image, *who])
    stop()
    serving(*attach)
    serving.stop()


def test_cache_in_use_is_refused(serving: Daemon, use: Use, folder: Path) -> None:
    image = sparse(folder / "other.img", 64 * MIB)
    who, _ = use(image)
    serving.refused(
        "device.in-use", "pool", "create", "other", "--device", image, "--overwrite", mentions=[image, *who]
    )
    serving.stop()


def test_device_below_a_loop_device_is_refused(serving: Daemon, devices: Devices, folder: Path) -> None:
    """Whose kernel does not say so to whoever opens the device below, even alone."""
    needs_root("losetup")
    below = devices.loop(sparse(folder / "disk.img", 64 * MIB))
    above = devices.loop(below)
    serving.refused("device.in-use", "volume", "attach", "db", "--backing", below, mentions=[below, above])
    serving.stop()


@pytest.mark.parametrize("user", ["mount", "volume", "file"])
def test_loop_device_whose_file_is_used_is_refused(user: str, serving: Daemon, devices: Devices, folder: Path) -> None:
    """By another loop device on the same bytes, or by a volume on the file."""
    needs_root("losetup")
    image = sparse(folder / "disk.img", 64 * MIB)
    if user == "file":
        serving("volume", "attach", "first", "--backing", f"file:{image}", "--export", serving.nbd("first"))
        who: list[object] = ["this very process"]
    else:
        other = devices.loop(image)
        who = [other]
        if user == "mount":
            run(["mkfs.ext4", "-q", str(other)])
            devices.mount(str(other), at=folder / "mnt")
        else:
            serving("volume", "attach", "first", "--backing", other, "--export", serving.nbd("first"))
    store = devices.loop(image)
    attach = ["volume", "attach", "db", "--backing", store, "--export", serving.nbd("db")]
    serving.refused("device.in-use", *attach, mentions=[store, *who])
    serving.stop()


def test_loop_devices_on_parts_of_a_file_are_accepted(serving: Daemon, devices: Devices, folder: Path) -> None:
    needs_root("losetup")
    image = sparse(folder / "disk.img", 128 * MIB)
    for name, offset in (("a", 0), ("b", 64 * MIB)):
        part = devices.loop(image, "--offset", str(offset), "--sizelimit", str(64 * MIB))
        serving("volume", "attach", name, "--backing", part, "--export", serving.nbd(name))
    serving.stop()


@pytest.mark.parametrize("kind", ["file", "device"])
def test_qemu_refuses_what_is_served(serving: Daemon, devices: Devices, folder: Path, kind: str) -> None:
    need("qemu-io", "qemu-img", "qemu-nbd")
    image = store = sparse(folder / "disk.img", 64 * MIB)
    if kind == "device":
        needs_root("losetup")
        store = devices.loop(image)
    backing = store if kind == "device" else f"file:{store}"
    serving("volume", "attach", "db", "--backing", backing, "--export", serving.nbd("db"))
    write = ["qemu-io", "-f", "raw", "-c", "write 0 4k"]
    read = ["qemu-io", "-r", "-f", "raw", "-c", "read 0 4k"]
    serve = ["qemu-nbd", "--fork", "-f", "raw", "-k", folder / "nobody.sock"]
    for path in (store, folder / "flash.img"):
        for command in (write, read, serve):
            result = run([*command, path], ok=False)
            assert result.code != 0, f"{command[0]} has opened {path}"
            assert "lock" in result.stderr, f"{command[0]} fails for something else: {result.stderr}"
    serving("volume", "detach", "db")
    run([*write, store])
    serving.stop()

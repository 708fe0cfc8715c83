"""A volume as a block device (ublk:): a file system on it outlives kill -9, restarts and an upgrade of the daemon,
without an I/O error; it grows while it is mounted; it is not taken away while it is used; and in the end the backing
store has every byte."""

import os
import platform
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.block import Block, KernelLog, read_at_once, waits
from harness.clients import Fio, need
from harness.command import Forebay, run
from harness.daemon import Daemon
from harness.devices import MIB, Devices, assert_same, random_file, sparse
from harness.process import Process
from harness.waiting import eventually

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = [{exports}]
"""
STORE = 64 * MIB
ublk = pytest.mark.guest("ublk")


@pytest.fixture
def kernel(root: None) -> KernelLog:
    del root
    need("mkfs.ext4", "fsck.ext4", "resize2fs", "fio", "blkdiscard", "fstrim", "blockdev")
    return KernelLog()


@pytest.fixture
def make_block(folder: Path, devices: Devices, forebay: Forebay, kernel: KernelLog) -> Callable[[str], Block]:
    del kernel
    return lambda name: Block(folder, devices, forebay, name)


@pytest.fixture
def block(make_block: Callable[[str], Block], daemon: Daemon, folder: Path) -> Iterator[Block]:
    """Volume `db`, served as /dev/forebay/db."""
    sparse(folder / "db.img", STORE)
    daemon.configure(CONFIG.format(folder=folder, exports='"ublk:"'))
    made = make_block("db")
    daemon.start()
    yield made
    # A device that waits for it would hang whoever comes next.
    daemon.clean_up()


def across(folder: Path, target: Path) -> Process:
    """Starts to write a file in a file system whose device has no daemon, and waits until it waits."""
    writer = Process(["dd", f"if={folder}/data", f"of={target}", "bs=1M", "conv=fsync"], folder / "writer.err")
    eventually(lambda: waits(writer.pid), 30, "a writer waits for the daemon")
    return writer


def test_kernel_without_ublk_is_refused(forebay: Forebay, folder: Path) -> None:
    if Path("/dev/ublk-control").exists():
        pytest.skip("this kernel has ublk")
    sparse(folder / "none.img", 16 * MIB)
    words = [
        "run",
        "--backing",
        f"file:{folder}/none.img",
        "--cache",
        f"{folder}/none.cache:64MiB",
        "--export",
        "ublk:x",
    ]
    forebay.refused("export.failed", *words, mentions=["ublk-control", "modprobe ublk_drv"])


@ublk
def test_device_is_as_its_store(block: Block, daemon: Daemon) -> None:
    assert block.size() == STORE
    assert (block.attribute("queue/logical_block_size"), block.attribute("queue/physical_block_size")) == (
        "512",
        "4096",
    )
    assert "write back" in block.attribute("queue/write_cache"), "FLUSH means nothing to it"
    assert str(block.path) in str(daemon.volume("db")), daemon.volume("db")
    assert str(block.path) in daemon("volume", "show", "db").stdout

    # A stop removes what nobody uses.
    daemon.stop()
    assert not block.is_there()
    assert not list(Path("/dev").glob("ublkc*"))


@ublk
def test_kill_under_load_is_a_pause(block: Block, daemon: Daemon, kernel: KernelLog) -> None:
    block.mount()
    load = block.load()
    number = block.number()
    for _ in range(2):
        load.goes_on()
        daemon.kill()
        assert load.still()
        daemon.start()
        assert block.number() == number, "it is another device"
        daemon.logged("export.note", [block.path, block.node()])
    load.goes_on()
    load.finish()
    kernel.has_no_errors("kill -9")


@ublk
def test_failed_start_leaves_device(block: Block, daemon: Daemon, folder: Path, kernel: KernelLog) -> None:
    """A start that cannot make all exports leaves the device alone, and a later attempt goes on with it."""
    at = block.mount()
    number, node = block.number(), block.node()
    daemon("flush", "db")  # or it could not be detached again
    daemon.kill()
    uri = f"nbd+unix:///db?socket={folder}/none/db.sock"
    daemon.configure(CONFIG.format(folder=folder, exports=f'"ublk:", "{uri}"'))
    daemon.start()
    daemon.logged("export.failed", ["db", f"{folder}/none/db.sock"])
    daemon.logged("export.note", [node, block.path])
    random_file(folder / "data", MIB)
    writer = across(folder, at / "waits")
    (folder / "none").mkdir()
    daemon("reload")
    daemon.wait_for(lambda: daemon.volume("db")["state"] == "serving", "the volume is attached")
    writer.succeeds()
    assert block.number() == number, "it is another device"
    assert_same(folder / "data", at / "waits")
    kernel.has_no_errors("a failed start")


@ublk
def test_stop_leaves_device_in_use(block: Block, daemon: Daemon, folder: Path, kernel: KernelLog) -> None:
    """SIGTERM: the device stays for those who use it, and the next start goes on with it."""
    at = block.mount()
    random_file(folder / "data", 8 * MIB)
    shutil.copy(folder / "data", at / "before")
    run(["sync", "-f", at])
    number = block.number()
    daemon.stop()
    daemon.logged("export.note", [block.node(), block.path])
    writer = across(folder, at / "across")
    daemon.start()
    writer.succeeds()
    assert block.number() == number, "it is another device"
    for name in ("before", "across"):
        assert_same(folder / "data", at / name, "over a restart")
    kernel.has_no_errors("SIGTERM")


@ublk
def test_upgrade_passes_device_on(block: Block, daemon: Daemon, folder: Path, kernel: KernelLog) -> None:
    at = block.mount()
    random_file(folder / "data", 8 * MIB)
    shutil.copy(folder / "data", at / "before")
    load = block.load()
    number = block.number()
    successor = daemon.json("upgrade")["to_pid"]
    try:
        assert daemon.running.wait() == 0
        load.goes_on()
        load.finish()
        assert block.number() == number, "it is another device"
        assert_same(folder / "data", at / "before", "over an upgrade")
        kernel.has_no_errors("upgrade")
        block.unmount()
        os.kill(successor, signal.SIGTERM)
        eventually(lambda: not Path(f"/proc/{successor}/exe").exists(), 60, "the successor stops")
        assert not block.is_there()
    finally:
        if Path(f"/proc/{successor}/exe").exists():
            os.kill(successor, signal.SIGKILL)


@ublk
def test_grows_where_the_kernel_can(block: Block, daemon: Daemon, folder: Path) -> None:
    """It grows under its file system, where the kernel can do that, and gives back what is deleted."""
    at = block.mount()
    larger = STORE + 32 * MIB
    sparse(folder / "db.img", larger)
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    if version >= (6, 16):
        daemon("volume", "resize", "db", larger)
        assert block.size() == larger
        run(["resize2fs", block.path])
        daemon.refused("volume.in-use", "volume", "resize", "db", STORE, mentions=["db", block.path])
    else:
        daemon.refused("volume.resize-unsupported", "volume", "resize", "db", larger, mentions=["Linux 6.16"])
        assert block.size() == STORE
        sparse(folder / "db.img", STORE)
    random_file(at / "deleted", 8 * MIB)
    run(["sync", "-f", at])
    (at / "deleted").unlink()
    run(["fstrim", at])


@ublk
def test_device_in_use_is_not_detached(block: Block, daemon: Daemon, folder: Path) -> None:
    """Not while it is mounted, nor while it is open. Detached, its backing store has every byte."""
    at = block.mount()
    random_file(folder / "data", 8 * MIB)
    shutil.copy(folder / "data", at / "data")
    number = block.number()
    daemon.refused("volume.in-use", "volume", "detach", "db", mentions=["db", block.path, "lsblk"])
    assert_same(folder / "data", at / "data", "after what was refused")
    block.unmount()
    with block.path.open("rb"):
        daemon.refused("volume.in-use", "volume", "detach", "db", mentions=[block.path, f"process {os.getpid()}"])

    had = block.path.read_bytes()
    daemon("volume", "detach", "db")
    assert not block.is_there() and not block.path.exists(), "the name is still there"
    assert not Path(f"/dev/ublkc{number}").exists(), "the device is still there"
    assert (folder / "db.img").read_bytes() == had, "the backing store has other bytes"
    run(["fsck.ext4", "-f", "-n", folder / "db.img"])


@ublk
def test_requests_of_every_kind(make_block: Callable[[str], Block], daemon: Daemon, folder: Path) -> None:
    """Under another name, attached and detached by command; --force takes it away under those who have it open."""
    sparse(folder / "db.img", STORE)
    daemon.configure(f'[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]\n')
    daemon.start()
    other = make_block("other.name")
    daemon(
        "volume", "attach", "db", "--pool", "fast", "--backing", f"file:{folder}/db.img", "--export", "ublk:other.name"
    )
    shape = ["--size=32M", "--rw=randwrite", "--bsrange=512-1M", "--blockalign=512", "--ioengine=psync", "--direct=1"]
    verify = ["--number_ios=60", "--verify=crc32c", "--verify_fatal=1", "--randrepeat=0"]
    run(["fio", "--name=raw", f"--filename={other.path}", *shape, *verify], cwd=folder)
    half = ["--offset", str(32 * MIB), "--length", str(16 * MIB)]
    run(["blkdiscard", *half, other.path])
    run(["blkdiscard", "--zeroout", *half, other.path])
    run(["cmp", "-n", str(16 * MIB), "-i", f"{32 * MIB}:0", other.path, "/dev/zero"])

    with other.path.open("rb", buffering=0) as opened:
        daemon("volume", "detach", "db", "--force")
        assert read_at_once(opened.fileno()) == b"", "what is gone is still read"
    daemon.stop()


@ublk
def test_failed_attach_leaves_no_device(
    make_block: Callable[[str], Block], block: Block, daemon: Daemon, folder: Path
) -> None:
    half = make_block("half")
    sparse(folder / "half.img", 32 * MIB)
    exports = ["--export", "ublk:half", "--export", f"nbd+unix:///half?socket={folder}/none/half.sock"]
    attach = ["volume", "attach", "half", "--pool", "fast", "--backing", f"file:{folder}/half.img", *exports]
    daemon.refused("export.failed", *attach, mentions=["half", f"{folder}/none/half.sock"])
    eventually(lambda: not half.is_there(), 20, "the name is gone")
    assert block.is_there()


@ublk
def test_abandoned_device_is_removed_by_name(block: Block, daemon: Daemon, forebay: Forebay, folder: Path) -> None:
    """A device that no daemon will serve again is listed, and removed by its name; meanwhile no other volume gets
    it."""
    served = f"process {daemon.pid}"
    daemon.refused("ublk.removal", "ublk", "remove", "db", mentions=[served, "detach"])
    assert forebay.json("ublk", "list")[0]["server_pid"] == daemon.pid
    daemon.kill()
    (found,) = forebay.json("ublk", "list")
    assert (found["name"], found["device"]) == ("db", str(block.node())), found
    assert "db" in forebay("ublk", "list").stdout
    forebay.refused("ublk.removal", "ublk", "remove", "nobody", mentions=["/dev/forebay/nobody", "ublk list"])
    with block.path.open("rb"):
        forebay.refused("ublk.removal", "ublk", "remove", "db", mentions=[block.path, "--force"])
    sparse(folder / "stranger.img", 64 * MIB)
    stranger = ["run", "--backing", f"file:{folder}/stranger.img", "--cache", f"{folder}/stranger.cache:64MiB"]
    stranger += ["--export", "ublk:db"]
    forebay.refused("export.failed", *stranger, mentions=["/dev/forebay/db", block.node(), "forebay ublk remove db"])
    forebay("ublk", "remove", "db")
    assert not block.is_there()
    assert forebay.json("ublk", "list") == []

    daemon.start()
    assert block.path.is_block_device(), "a new one is not made"
    stranger[stranger.index("--cache") + 1] = f"{folder}/stranger2.cache:64MiB"
    forebay.refused("export.failed", *stranger, mentions=["/dev/forebay/db", block.node(), f"process {daemon.pid}"])
    daemon.stop()


@ublk
def test_volumes_do_not_harm_each_other(block: Block, daemon: Daemon, folder: Path, kernel: KernelLog) -> None:
    at = block.mount()
    sparse(folder / "stranger.img", 64 * MIB)
    stranger = ["--pool", "fast", "--backing", f"file:{folder}/stranger.img", "--export", "ublk:"]
    daemon("volume", "attach", "stranger", *stranger)
    daemon("volume", "detach", "stranger")
    random_file(at / "file", MIB)
    run(["sync", "-f", at])
    kernel.has_no_errors("another volume came and went")
    block.unmount()
    daemon.stop()


@ublk
def test_impossible_exports_are_refused(kernel: KernelLog, forebay: Forebay, devices: Devices, folder: Path) -> None:
    del kernel
    sparse(folder / "db.img", STORE)
    words = ["run", "--backing", f"file:{folder}/db.img", "--cache", f"{folder}/other.img:64MiB"]
    forebay.refused("export.failed", *words, "--io", "psync", "--export", "ublk:x", mentions=["io_uring", "--io uring"])
    taken = Path("/dev/forebay/taken")
    taken.parent.mkdir(exist_ok=True)
    taken.touch()
    devices.at_exit(taken.unlink)
    forebay.refused("export.failed", *words, "--export", "ublk:taken", mentions=[taken])


@ublk
@pytest.mark.long
@pytest.mark.limit(300)
def test_many_devices(make_block: Callable[[str], Block], daemon: Daemon, folder: Path) -> None:
    """Sixty-four devices of one pool: made, written and compared all at once, over a kill -9, and taken away."""
    names = [f"d{number}" for number in range(1, int(os.environ.get("COUNT", "64")) + 1)]
    text = [f'[pool.fast]\ndevices = [{{ path = "{folder}/flash.img", size = "256MiB" }}]\n']
    for name in names:
        store = sparse(folder / f"{name}.img", 8 * MIB)
        text.append(f'[volume.{name}]\npool = "fast"\nbacking = "file:{store}"\nexports = ["ublk:"]\n')
    blocks = [make_block(name) for name in names]
    daemon.configure("".join(text))
    daemon.start()
    assert all(block.is_there() for block in blocks)
    shape = [
        "--ioengine=io_uring",
        "--direct=1",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=4",
        "--size=8M",
        "--io_size=1M",
    ]
    jobs = [word for block in blocks for word in (f"--name={block.name}", f"--filename={block.path}")]
    load = Fio(folder, "all", *shape, "--do_verify=1", "--thread", *jobs)
    eventually(lambda: all(block.completed() > 0 for block in blocks), 60, "the load has begun")
    daemon.kill()
    daemon.start()
    load.succeeds(200)
    assert all(block.is_there() for block in blocks)
    for name in names:
        daemon("volume", "detach", name)
    assert not any(block.is_there() for block in blocks)
    daemon.stop()

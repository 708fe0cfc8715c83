"""udev looks at a device again when the daemon has written or erased a signature: `lsblk -f` shows it without a restart
of the machine. The tests listen to the kernel for the event; there need not be a udev."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.devices import MIB, Devices, sparse
from harness.waiting import eventually

NETLINK_KOBJECT_UEVENT = 15
OF_THE_KERNEL = 1


class Changes:
    """Names of the block devices that the kernel has reported as changed."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener

    def since_last(self) -> set[str]:
        names = set()
        while True:
            try:
                message = self.listener.recv(65536).split(b"\0", 1)[0].decode()
            except BlockingIOError:
                return names
            if message.startswith("change@"):
                names.add(message.rsplit("/", 1)[1])


@pytest.fixture
def changes(root: None) -> Iterator[Changes]:
    del root
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as listener:
        listener.bind((0, OF_THE_KERNEL))
        listener.setblocking(False)
        yield Changes(listener)


@pytest.fixture
def blank(devices: Devices, folder: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        return devices.loop(sparse(folder / f"{name}.img", 64 * MIB))

    return make


def reported(changes: Changes, *wanted: Path) -> None:
    names: set[str] = set()

    def all_came() -> bool:
        names.update(changes.since_last())
        return {device.name for device in wanted} <= names

    eventually(all_came, 30, f"change events of {wanted}")


def test_new_cache_devices_are_announced(daemon: Daemon, changes: Changes, blank: Callable[[str], Path]) -> None:
    """When a pool is created, grown, gets another device and is removed."""
    first, second, third = blank("first"), blank("second"), blank("third")
    daemon.configure("")
    daemon.start()
    changes.since_last()
    daemon("pool", "create", "fast", "--device", first)
    reported(changes, first)
    daemon("pool", "grow", "fast", "--device", second)
    reported(changes, second)
    daemon("pool", "replace", "fast", "--old", first, "--device", third)
    reported(changes, first, third)
    daemon.stop()


def test_members_of_a_mirror_are_announced(daemon: Daemon, changes: Changes, blank: Callable[[str], Path]) -> None:
    left, right = blank("left"), blank("right")
    daemon.configure("")
    daemon.start()
    changes.since_last()
    daemon("pool", "create", "safe", "--mirror", "--device", left, "--device", right)
    reported(changes, left, right)
    daemon.stop()

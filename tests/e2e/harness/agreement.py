"""Whether the configuration file, what the daemon shows, and what it serves are the same."""

import re
from pathlib import Path
from typing import Any

from .daemon import Daemon
from .nbd import Client, Disconnected

LABELS = re.compile(r'(\w+)="([^"]*)"')


def shown_by_metrics(daemon: Daemon, name: str, label: str, state: str) -> set[str]:
    """Values of a label, of those whose state is `state`."""
    found = set()
    for sample, value in daemon.api.metrics().items():
        labels = dict(LABELS.findall(sample))
        if sample.startswith(f"{name}{{") and labels.get("state") == state and value == 1:
            found.add(labels[label])
    return found


def served_size(daemon: Daemon, export: str) -> int | None:
    """The size that a client of an export is told; `None` if nobody serves it."""
    try:
        with Client(str(daemon.socket(export)), export) as client:
            return client.size
    except (OSError, AssertionError, Disconnected):
        return None


def in_kib(size: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)?", str(size)).groups()  # type: ignore[union-attr]
    return int(number) << {None: 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]


def store(uri: str) -> str:
    """The path of a backing store."""
    return uri.removeprefix("file:").removeprefix("//")


def agree(daemon: Daemon, names: tuple[str, ...], when: str) -> dict[str, Any]:
    """All three agree on pools and volumes; `names` are exports that there may be. What they agree on."""
    config = daemon.config()
    pools, volumes = config.get("pool", {}), config.get("volume", {})
    shown_pools = {pool["name"]: pool for pool in daemon.api.get("/v1/pools")}
    assert shown_pools.keys() == pools.keys(), f"{when}: pools {set(shown_pools)}, the file has {set(pools)}"
    assert not any(pool["not_open"] for pool in shown_pools.values()), f"{when}: {shown_pools}"
    assert shown_by_metrics(daemon, "forebay_pool_state", "pool", "open") == pools.keys(), when
    for name, pool in pools.items():
        shown = [device["path"] for device in shown_pools[name]["devices"]]
        named = [entry if isinstance(entry, str) else entry["path"] for entry in pool["devices"]]
        assert shown == named, f"{when}: pool {name} lies on {shown}, the file names {named}"
    listed = {volume["name"]: volume for volume in daemon.json("volume", "list")}
    served = {name for name, volume in listed.items() if volume["state"] == "serving"}
    assert served == volumes.keys(), f"{when}: {served} are served, the file has {set(volumes)}: {listed}"
    for name in listed.keys() - served:
        left = listed[name]
        assert left["state"] == "absent" and left["dirty_bytes"], f"{when}: {left}"
    assert shown_by_metrics(daemon, "forebay_volume_state", "volume", "serving") == served, when
    for name in names:
        size = served_size(daemon, name)
        assert (size is not None) == (name in served), f"{when}: {name} has {size} bytes for clients: {listed}"
        if name in served:
            section, volume = volumes[name], listed[name]
            assert size == volume["size_bytes"], f"{when}: {name} has {size} bytes for clients: {volume}"
            given = section.get("size")
            assert given is None or in_kib(given) == size, f"{when}: {name} has {size}, not {given} as in the file"
            assert volume["mode"] == section.get("mode", "writeback"), f"{when}: {section}, {volume}"
            assert volume["exports"] == section["exports"], f"{when}: {section}, {volume}"
            assert store(volume["backing"]) == store(section["backing"]), f"{when}: {section}, {volume}"
    left = {name: listed[name]["dirty_bytes"] for name in listed.keys() - served}
    return {"pools": pools, "volumes": volumes, "left": left}


def first_byte(daemon: Daemon, export: str, store: Path) -> int:
    """The first byte of a volume as a client reads it, or of its backing store if nobody serves it."""
    if served_size(daemon, export) is None:
        return store.read_bytes()[0]
    with Client(str(daemon.socket(export)), export) as client:
        error, data = client.call(0, 0, 512)
    assert error == 0, f"error {error} of {export}"
    return data[0]

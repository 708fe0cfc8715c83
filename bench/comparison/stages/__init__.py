"""The groups: what each measures, and its stages for a scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comparison.model import Stage
from comparison.scale import Scale
from comparison.stages import disk, flash, state


@dataclass(frozen=True)
class Group:
    """A part of the comparison that can be asked for by name."""

    about: str
    stages: Callable[[Scale], list[Stage]]


GROUPS: dict[str, Group] = {
    "hits": Group("4 KiB random reads of cached data, by depth and connections", flash.hits),
    "writes": Group("4 KiB random writes, write-back, within the dirty limit", flash.writes),
    "flush": Group("write + FLUSH at depth 1, against write + fdatasync", flash.flush),
    "sequential": Group("128 KiB sequential reads and writes", flash.sequential),
    "null": Group("the export path alone: the null volume against `nbdkit memory`", flash.null),
    "latency": Group("p50 at full load and alone, p99.9, the longest stall", flash.latency),
    "crowd": Group("one busy connection alone, and with a thousand idle ones", flash.crowd),
    "states": Group("cache empty, half full, full and reclaiming, heavily dirty with destage running", state.states),
    "sizes": Group("the same work on volumes of 10 GiB, 100 GiB and 1 TiB", state.sizes),
    "amplification": Group("bytes written to the cache device for each byte stored", state.amplification),
    "idle": Group("CPU of an idle daemon, over 20 s", state.idle),
    "mix": Group("70/30 mix, zipf 1.1, over twice and four times the cache, on the emulated disk", disk.mix),
    "database": Group("16 KiB mix with an fsync every 32 writes, on the emulated disk", disk.database),
}

# Names for several groups. CPU cost is measured in every run; these show it for all servers.
ALIASES: dict[str, tuple[str, ...]] = {
    "cost": ("hits", "writes", "flush", "sequential"),
    "flash": tuple(name for name in GROUPS if name not in ("mix", "database")),
    "disk": ("mix", "database"),
}

"""forebay salvage: after kill -9 a copy of the backing store with the salvaged data holds everything that was
acknowledged. With damaged superblocks too.

A damaged block is listed as lost, and what a lost checkpoint leaves in doubt is kept apart."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import cache_damage
from harness.clients import need, write_pattern
from harness.command import Forebay, Result
from harness.daemon import Daemon, RunVolume
from harness.devices import MIB, assert_same, checksum, released, sparse
from harness.oracle_run import Oracle

LAZY = ["--set", "dirty_low_pct=80", "--set", "dirty_high_pct=90"]
CONFIG = """[pool.fast]
devices = [{{ path = "{folder}/one.img", size = "16MiB" }}, {{ path = "{folder}/two.img", size = "48MiB" }}]

[volume.vol]
pool = "fast"
backing = "file:{backing}"
exports = ["{export}"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
"""


class Killed:
    """A volume that was killed in the middle of writes, and a copy of its backing store that is up to date."""

    def __init__(self, volume: RunVolume) -> None:
        self.volume = volume
        self.folder = volume.folder
        self.forebay = volume.forebay
        self.cache = volume.cache
        self.oracle = volume.oracle()
        self.copy = self.folder / "copy.img"

    def salvage(self, *words: object) -> Result:
        return self.forebay("salvage", *words)

    def copy_of_backing(self, name: str) -> Path:
        return Path(shutil.copy(self.volume.backing, self.folder / name))

    def extracted_onto(self, folder: Path, name: str) -> Path:
        """A copy of the backing store with the dirty data of a folder."""
        image = self.copy_of_backing(name)
        cache_damage.apply(folder / "vol.dirty", folder / "vol.ranges", image)
        return image


@pytest.fixture
def killed(volume: RunVolume) -> Killed:
    volume.make_backing(48 * MIB)
    # Where the daemon and salvage have their records.
    volume.state_dir.mkdir()
    made = Killed(volume)
    volume.start(*LAZY)
    load = made.oracle.load(seconds=60)
    time.sleep(1)
    volume.forebay.refused(
        "device.in-use", "salvage", volume.cache, "--to", volume.folder / "busy", mentions=[volume.cache]
    )
    volume.kill()
    load.succeeds()
    released(made.cache)
    before = checksum(made.cache)
    made.copy_of_backing("copy.img")
    made.salvage(made.cache, "--volume", "vol", "--onto", f"file:{made.copy}")
    assert checksum(made.cache) == before, "salvage wrote to the cache"
    return made


@pytest.mark.heavy
def test_copy_has_everything_acknowledged(killed: Killed, folder: Path) -> None:
    killed.oracle.verify_file(killed.copy, "after salvage --onto")
    cache, out = killed.cache, folder / "out"
    killed.salvage(cache, "--to", out)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [out, *out.iterdir()]}
    assert modes.pop("out") == 0o700, modes
    assert set(modes.values()) == {0o600}, "others can read what was salvaged"
    assert_same(killed.copy, killed.extracted_onto(out, "copy2.img"), "with the folder, by its list")

    # No file is replaced unless that is asked for.
    killed.forebay.refused("cli.exists", "salvage", cache, "--to", out, mentions=["--overwrite"])
    done = killed.salvage(cache, "--to", out, "--overwrite", "--json").json()
    assert done["complete"], done
    assert done["dirty_bytes"] > 0, done
    assert done["lost_bytes"] == done["uncertain_bytes"] == 0, done
    # Where it looked for a record.
    assert done["records_sought_in"] == [str(killed.volume.state_dir)], done
    said = killed.salvage(cache, "--to", out, "--overwrite")
    assert str(killed.volume.state_dir) in said.stdout + said.stderr, said.describe()
    assert "--config" in said.stdout + said.stderr, said.describe()
    killed.forebay.refused("cli.usage", "salvage", cache, code=2)
    killed.forebay.refused(
        "salvage.volume", "salvage", cache, "--to", folder / "none", "--volume", "other", code=2, mentions=["other"]
    )


def test_nothing_is_written_without_record(killed: Killed, folder: Path) -> None:
    """With nowhere to look for a record nothing is written over a copy."""
    onto = Path(shutil.copy(killed.copy, folder / "copy2.img"))
    nowhere = folder / "nowhere"
    if not Path("/etc/forebay/forebay.toml").exists():
        untold = Forebay(folder)
        untold.env["STATE_DIRECTORY"] = str(nowhere)
        command = ["salvage", killed.cache, "--volume", "vol", "--onto", onto]
        untold.refused("salvage.record", *command, mentions=[nowhere, "--config FILE"])
    assert_same(killed.copy, onto, "and nothing was to be written")
    nowhere.mkdir()
    killed.salvage(killed.cache, "--volume", "vol", "--onto", onto, "--state-dir", nowhere)
    assert_same(killed.copy, onto, "after it was applied a second time")


def test_layout_is_found_without_superblocks(killed: Killed, folder: Path) -> None:
    headless, out = Path(shutil.copy(killed.cache, folder / "headless.img")), folder / "headless"
    cache_damage.damage_superblocks(headless)
    killed.forebay.refused("cache.not-a-cache", "check", headless, mentions=[headless])
    killed.salvage(headless, "--to", out)
    # The crash may have come when the next checkpoint was written and no superblock named it yet: without superblocks
    # it counts, and what it calls clean the backing store has.
    assert_same(killed.copy, killed.extracted_onto(out, "copy3.img"), "without superblocks")


def test_lost_checkpoint_leaves_only_doubts(killed: Killed, folder: Path) -> None:
    """Both copies of the checkpoint are damaged: everything is uncertain, and nothing is mixed."""
    # What the newest checkpoint that was written calls dirty, whether a superblock names it or not.
    headless = Path(shutil.copy(killed.cache, folder / "headless.img"))
    cache_damage.damage_superblocks(headless)
    killed.salvage(headless, "--to", folder / "headless")

    superblock = killed.forebay.json("inspect", killed.cache)["superblocks"][0]
    generation = superblock["base_generation"] or superblock["checkpoint_generation"]
    lost, out = Path(shutil.copy(killed.cache, folder / "lost.img")), folder / "lost"
    cache_damage.damage_checkpoint(lost, generation, superblock["checkpoint_slot_blocks"])
    words = ["--backing", f"file:{killed.volume.backing}", "--cache", lost, "--export", killed.volume.uri]
    refusal = killed.forebay.refused("cache.damaged", "run", *words)
    assert "forebay salvage CACHE --to FOLDER" in refusal.text, refusal
    killed.forebay.refused("salvage.incomplete", "salvage", lost, "--to", out, mentions=[lost])
    assert not list(out.glob("*.dirty")), "uncertain data was called dirty"
    # The volume's name is known only to checkpoints.
    names = [path.name for path in out.iterdir()]
    (doubt,) = [name for name in names if name in ("vol.uncertain", "volume-0.uncertain")]
    right, doubtful = (folder / "headless/vol.dirty").read_bytes(), (out / doubt).read_bytes()
    for start, count in cache_damage.ranges(folder / "headless/vol.ranges", ("dirty", "uncertain", "lost")):
        assert right[start : start + count] == doubtful[start : start + count], (start, count)


def test_damaged_block_is_listed_as_lost(killed: Killed, folder: Path) -> None:
    """And everything else is there."""
    killed.volume.start(*LAZY)
    killed.volume.stop()
    whole, out = folder / "whole", folder / "bad"
    killed.salvage(killed.cache, "--to", whole)
    bad = Path(shutil.copy(killed.cache, folder / "bad.img"))
    offset = cache_damage.damage_dirty_sector(bad, whole / "vol.dirty", whole / "vol.ranges")
    killed.forebay.refused("salvage.incomplete", "salvage", bad, "--to", out, mentions=[bad])
    ((start, count),) = cache_damage.ranges(out / "vol.ranges", ("lost",))
    assert start <= offset < start + count, (start, count, offset)
    assert count <= 4096
    right, found = (whole / "vol.dirty").read_bytes(), (out / "vol.dirty").read_bytes()
    assert right[:start] == found[:start]
    assert right[start + count :] == found[start + count :]
    assert found[start : start + count] == bytes(count)


class Two:
    """A pool of two devices that was killed, and what was acknowledged."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.one, self.two = folder / "one.img", folder / "two.img"
        self.backing = sparse(folder / "backing.img", 48 * MIB)
        self.export = daemon.nbd("vol")
        daemon.configure(CONFIG.format(folder=folder, backing=self.backing, export=self.export))
        daemon.start()
        self.oracle: Oracle = daemon.oracle("vol")
        self.oracle.write(1)
        daemon.refused("device.in-use", "check", self.two, self.one, mentions=[self.two])
        daemon.kill()


@pytest.fixture
def two(daemon: Daemon, folder: Path) -> Two:
    return Two(daemon, folder)


@pytest.mark.heavy
def test_devices_are_taken_in_any_order(two: Two, daemon: Daemon, folder: Path) -> None:
    daemon("check", two.two, two.one)
    daemon("inspect", two.one, two.two, "--segments")
    daemon.refused("cache.member-missing", "check", two.one, mentions=[1])
    daemon.refused("cache.member-missing", "inspect", two.two, mentions=[two.two])
    daemon.refused("cache.member-foreign", "check", two.one, two.two, two.backing, mentions=[two.backing])
    again = Path(shutil.copy(two.two, folder / "two-again.img"))
    daemon.refused("cache.member-twice", "check", two.one, two.two, again, mentions=[two.two, again, 1])
    copy = Path(shutil.copy(two.backing, folder / "copy4.img"))
    state = ["--state-dir", daemon.state_dir]
    daemon("salvage", two.two, two.one, "--volume", "vol", "--onto", copy, *state)
    two.oracle.verify_file(copy, "of a pool of two devices")
    daemon.refused("salvage.incomplete", "salvage", two.one, "--to", folder / "half", *state)


def test_log_may_go_on_where_a_device_is_missing(daemon: Daemon, folder: Path) -> None:
    """All that is dirty lies on the device that is there. The other one could have had something newer."""
    need("qemu-io")
    backing = sparse(folder / "backing.img", 48 * MIB)
    daemon.configure(CONFIG.format(folder=folder, backing=backing, export=daemon.nbd("vol")))
    daemon.start()
    write_pattern(daemon.nbd("vol"), 0x41, "0", "64K")
    daemon.kill()
    state = ["--state-dir", daemon.state_dir]
    command = ["salvage", folder / "one.img", "--to"]
    daemon.refused("salvage.incomplete", *command, folder / "half", *state, mentions=["--include-uncertain"])
    found = daemon(*command, folder / "again", *state, "--json", ok=False).json()
    assert not found["complete"] and found["uncertain_bytes"] == 64 << 10 and found["dirty_bytes"] == 0, found
    whole = daemon.json("salvage", folder / "two.img", *command[1:], folder / "whole", *state)
    assert whole["complete"] and whole["dirty_bytes"] == 64 << 10, whole


def test_device_of_another_cache_is_refused(two: Two, daemon: Daemon, make_volume: Callable[..., RunVolume]) -> None:
    other = make_volume("other")
    other.backing = two.folder / "other-backing.img"
    other.make_backing(16 * MIB)
    other.start()
    other.stop()
    daemon.refused("cache.member-foreign", "check", two.one, other.cache, mentions=[other.cache])


def test_given_up_cache_has_only_doubts(two: Two, daemon: Daemon, folder: Path) -> None:
    """Of a cache that a daemon gave up: only what the record lists, and none of it for certain."""
    # What was asked for in the environment is sought there; the other folder has a record.
    records, other = folder / "records", folder / "other"
    records.mkdir()
    daemon.forebay.env["STATE_DIRECTORY"] = str(records)
    done = daemon("salvage", two.two, two.one, "--to", folder / "all", "--json").json()
    assert done["given_up"] is None, done
    assert done["records_sought_in"] == [str(records)], done
    (volume,) = done["volumes"]
    some = [{"offset_bytes": part["offset_bytes"], "bytes": 512, "written_unix_s": 1} for part in volume["ranges"][::2]]
    uuid = done["uuid"].replace("-", "")
    listed = {"name": "vol", "uuid": "0" * 32, "number": volume["id"], "size_bytes": volume["size_bytes"], "lost": some}
    head = {"version": 1, "cache_uuid": uuid, "pool": "fast", "devices": [], "reason": "the test"}
    record = {**head, "failed_unix_s": 1, "recorded_unix_s": 1, "volumes": [listed]}
    (other / "failed-caches").mkdir(parents=True)
    (other / "failed-caches" / f"{uuid}.json").write_text(json.dumps(record))

    daemon.state_dir = other
    daemon.configure(CONFIG.format(folder=folder, backing=two.backing, export=two.export))
    out = folder / "given-up"
    command = ["salvage", two.two, two.one, "--to", out, "--config", daemon.config_path, "--json"]
    result = daemon(*command, ok=False)
    assert result.code == 1, result.describe()
    found = result.json()
    assert found["given_up"] is not None, found
    assert found["uncertain_bytes"] > 0, found
    assert not (out / "vol.dirty").exists(), "something is called dirty"
    lines = [line for line in (out / "vol.ranges").read_text().splitlines() if not line.startswith("#")]
    assert lines == [f"{part['offset_bytes']} 512 uncertain" for part in some]
    copy = Path(shutil.copy(two.backing, folder / "copy5.img"))
    onto = ["--volume", "vol", "--onto", copy, "--state-dir", other]
    daemon.refused("salvage.incomplete", "salvage", two.two, two.one, *onto, mentions=["--include-uncertain"])
    # A folder by a wrong name has no record, and proves nothing.
    for words in (["salvage", two.two, two.one, *onto[:-1]], ["check", two.two, two.one, "--state-dir"]):
        daemon.refused("salvage.record", *words, folder / "othr", mentions=["othr", "state_dir"])
    assert_same(two.backing, copy, "and nothing was to be written")

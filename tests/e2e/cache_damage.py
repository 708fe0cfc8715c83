"""Damages a copy of a cache, and applies what `forebay salvage --to` extracted.

cache_damage.py superblocks CACHE            both copies
cache_damage.py checkpoints CACHE GENERATION both copies of one checkpoint; needs the length of a slot: SLOT_BLOCKS
cache_damage.py sector      CACHE DIRTY RANGES   flips a bit of the first dirty range; prints its offset
cache_damage.py apply       DIRTY RANGES IMAGE [STATE...]  writes the ranges of these states onto an image"""

import os
import sys
from pathlib import Path

BLOCK = 4096


def ranges(path, states):
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            offset, count, state = line.split()
            if state in states:
                yield int(offset), int(count)


def flip(cache, offset):
    cache.seek(offset)
    byte = cache.read(1)[0] ^ 1
    cache.seek(offset)
    cache.write(bytes([byte]))


def main(what, path, *rest):
    if what == "apply":
        listed, image = rest[0], rest[1]
        with Path(path).open("rb") as dirty, Path(image).open("r+b") as to:
            for offset, count in ranges(listed, rest[2:] or ["dirty"]):
                dirty.seek(offset)
                to.seek(offset)
                to.write(dirty.read(count))
        return
    with Path(path).open("r+b") as cache:
        if what == "superblocks":
            for block in (0, 16):
                cache.seek(block * BLOCK)
                cache.write(b"\xff" * 512)
        elif what == "checkpoints":
            length = int(os.environ["SLOT_BLOCKS"])
            for copy in (0, 1):
                flip(cache, (32 + (int(rest[0]) % 2 * 2 + copy) * length) * BLOCK + 4096 + 9)
        elif what == "sector":
            offset, _ = next(ranges(rest[1], ["dirty"]))
            with Path(rest[0]).open("rb") as dirty:
                dirty.seek(offset)
                wanted = dirty.read(512)
            # It may lie there more than once: blocks are copied when they are merged or moved. No other sector is the
            # same.
            cache.seek(0)
            whole = cache.read()
            at = whole.find(wanted)
            assert at > 0, "the dirty sector is not in the cache"
            while at > 0:
                flip(cache, at)
                at = whole.find(wanted, at + 1)
            print(offset)


main(*sys.argv[1:])

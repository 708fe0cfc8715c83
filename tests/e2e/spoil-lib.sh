# shellcheck shell=bash
# For tests that damage a cache at rest; sourced after lib.sh. The pool's cache is $T/flash.img.
#
#   spoil BYTE [first]    every second block of the cache file that is full of this byte gets another one, or only the first; prints how many

spoil() {
    python3 - "$T/flash.img" "$1" "${2:-}" <<'END'
import sys
path, byte, only, seen, spoilt = sys.argv[1], int(sys.argv[2], 0), sys.argv[3] == "first", 0, 0
with open(path, "r+b") as cache:
    block = 0
    while found := cache.read(4096):
        if found == bytes([byte]) * 4096:
            seen += 1
            if seen % 2 and not (only and spoilt):
                cache.seek(block * 4096 + 100)
                cache.write(b"!")
                cache.seek((block + 1) * 4096)
                spoilt += 1
        block += 1
print(spoilt)
sys.exit(f"no block of {byte:#x} in {path}" if not spoilt else 0)
END
}

#!/usr/bin/env bash
# A pool of two devices and more changes the size of its last one and gets further ones, under dirty data. After orderly stops and
# after kill -9 at any moment of it, the next start serves everything, and check and salvage read the same cache; also if the header
# of a member is one step behind or ahead, as earlier builds left it.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

truncate -s 48M "$T/vol.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "32MiB" }, { path = "$T/more.img", size = "32MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbd+unix:///vol?socket=$SOCKET"]
idle_delay = "off"
END
DEVICES=("$T/flash.img" "$T/more.img")
check() { # WHEN
    "$FOREBAY" check "${DEVICES[@]}" --state-dir "$T/state.d" >"$T/check.out" 2>&1 || { cat "$T/check.out"; fail "check $1"; }
}
salvaged() { # WHEN: backing store and what is salvaged are what was acknowledged
    cp --sparse=always "$T/vol.img" "$T/copy.img"
    "$FOREBAY" salvage "${DEVICES[@]}" --volume vol --onto "file:$T/copy.img" --state-dir "$T/state.d" >"$T/salvage.out" 2>&1 ||
        { cat "$T/salvage.out"; fail "salvage $1"; }
    cp "$T/state" "$T/state.judge"
    python3 "$E2E/nbd_writer.py" check-file --state "$T/state.judge" --file "$T/copy.img" >"$T/judge.out" ||
        { tail -n 5 "$T/judge.out"; fail "salvage lacks something $1"; }
}
again() { # WHEN
    check "$1"
    salvaged "$1"
    serve
    ! grep -q 'brought up to date' "$T/stderr" || fail "a header was not what the cache used, $1"
    verify "$1"
}
length() { [ "$(stat -c %s "$1")" = "$(($2 << 20))" ] || fail "$1 has $(stat -c %s "$1") bytes, not $2 MiB"; }
# patch FILE [BLOCKS [BLOCKS]]: sets what the copies of a member header say of its length (as they are), and prints the first.
patch() {
    python3 - "$@" <<'END'
import struct, sys

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

path, *blocks = sys.argv[1:]
with open(path, "r+b") as file:
    for copy, at in enumerate((0, 16 * 4096)):
        file.seek(at)
        block = bytearray(file.read(4096))
        assert block[:8] == b"FBAYMEMB", "no member header"
        if copy == 0:
            print(struct.unpack_from("<Q", block, 48)[0])
        if blocks:
            struct.pack_into("<Q", block, 48, int(blocks[min(copy, len(blocks) - 1)]))
            struct.pack_into("<I", block, 4092, 0)
            struct.pack_into("<I", block, 4092, crc32c(block))
            file.seek(at)
            file.write(block)
END
}
sed -i "s|^state_dir = .*|state_dir = \"$T/state.d\"|" "$T/forebay.toml"

serve
writer write --seconds 1 >"$T/writer.out" 2>&1 || fail "the writer: $(tail -n 5 "$T/writer.out")"

say "shorter, longer, a further device, and without it: a start after each, orderly and killed"
for end in unserve crash; do
    ask pool shrink fast --size 24MiB
    length "$T/more.img" 24
    grep -q 'more.img", size = "24MiB"' "$T/forebay.toml" || fail "the configuration has another size: $(grep devices "$T/forebay.toml")"
    ask reload
    length "$T/more.img" 24
    "$end"
    again "after a shrink and $end"
    ask pool grow fast --size 40MiB
    ask pool shrink fast --size 36MiB
    "$end"
    again "after a grow, a shrink and $end"
    length "$T/more.img" 36
    ask pool grow fast --device "$T/third.img:16MiB" --force
    ask pool grow fast --size 20MiB
    DEVICES+=("$T/third.img")
    "$end"
    again "after a further device and $end"
    [ "$(patch "$T/more.img")" = $((35 * 256)) ] && [ "$(patch "$T/third.img")" = $((19 * 256)) ] || fail "the headers"
    refused 2 "more.img cannot be given up: the last device takes its place" "$FOREBAY" pool shrink fast --device "$T/more.img" --admin "$ADMIN"
    refused 2 "would hold nothing
to give it up: forebay pool shrink fast --device" "$FOREBAY" pool shrink fast --size 1MiB --admin "$ADMIN"
    refused 1 "not even one segment" "$FOREBAY" pool shrink fast --size 1028KiB --admin "$ADMIN"
    refused 2 "uses 20MiB of .*third.img already" "$FOREBAY" pool shrink fast --size 20MiB --admin "$ADMIN"
    ask pool shrink fast --device "$T/third.img"
    DEVICES=("$T/flash.img" "$T/more.img")
    ask pool grow fast --size 37500KiB # not in whole segments
    ask pool shrink fast --size 32MiB
    "$end"
    rm "$T/third.img"
    again "after the last device was given up and $end"
done

say "headers as an earlier build left them, and a change that was cut off between their copies: they are mended"
ask pool grow fast --device "$T/third.img:16MiB"
DEVICES+=("$T/third.img")
unserve
for blocks in 9999999 "2048 3840"; do
    # shellcheck disable=SC2086
    patch "$T/third.img" $blocks >/dev/null
    patch "$T/more.img" 5000 >/dev/null
    check "with stale headers ($blocks)"
    salvaged "with stale headers ($blocks)"
    serve
    logged 'third.img is brought up to date: 3840 blocks'
    verify "with stale headers ($blocks)"
    unserve
    again "after the headers were mended ($blocks)"
    unserve
done

say "a device that was cut is refused, by its name, and opens with its length restored"
for device in "${DEVICES[@]}"; do
    bytes=$(stat -c %s "$device")
    cp --sparse=always "$device" "$T/kept.img"
    truncate -s -1M "$device"
    refused 1 "$device has .* bytes, but its part of the cache needs $bytes
restore its full length" "$FOREBAY" check "${DEVICES[@]}" --state-dir "$T/state.d"
    serve
    logged "$device has .* bytes, but its part of the cache needs"
    unserve
    cp --sparse=always "$T/kept.img" "$device"
done
serve
verify "with the full length of all devices"

say "killed in the middle of changes, under writes"
for after in 5 40; do
    for change in "shrink --size 12MiB" "grow --size 24MiB" "grow --size 32MiB"; do
        : >"$T/writer.out"
        writer write --seconds 20 --seed "$after" >"$T/writer.out" 2>&1 &
        WRITER=$!
        eventually 30 grep -q '^connected' "$T/writer.out" || fail "the writer"
        read -r what size <<<"$change"
        # shellcheck disable=SC2086
        "$FOREBAY" pool "$what" fast $size --admin "$ADMIN" >"$T/killed.out" 2>&1 &
        CHANGE=$!
        sleep "$(printf '0.%03d' "$after")"
        crash
        wait "$CHANGE" || true
        wait "$WRITER" || { cat "$T/writer.out"; fail "the writer"; }
        check "after a kill $after ms into $change"
        salvaged "after a kill $after ms into $change"
        serve
        verify "after a kill $after ms into $change"
    done
done
unserve
again "at the end"
unserve

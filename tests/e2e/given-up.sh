#!/usr/bin/env bash
# A device that Forebay has given up is as good as new: it is taken again without --force, by whatever it was given up. What somebody puts
# on it afterwards, and what was never the cache's, is not. And kill -9 at every step of a removal, or of an export, leaves a pool that is
# there or one that is gone, and a name and a device that can be used again without --force.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 losetup mkfs.ext4 mkswap blkdiscard strace
export E2E

loop() { # NAME SIZE: a blank device
    truncate -s "$2" "$T/$1.raw"
    losetup -f --show "$T/$1.raw" || skip "there are no loop devices"
}
FLASH=$(loop flash 96M)
on_exit "losetup -d $FLASH"
OTHER=$(loop other 96M)
on_exit "losetup -d $OTHER"
truncate -s 64M "$T/db.img"
config </dev/null
cat >"$T/fill.py" <<'END'
import os, sys
sys.path.insert(0, os.environ["E2E"])
from nbd_client import FLUSH, WRITE, Client
client, block = Client(sys.argv[1], "db"), b"\x07" * 65536
for at in range(0, 24 << 20, 65536):
    assert client.call(WRITE, at, 65536, block)[0] == 0
assert client.call(FLUSH)[0] == 0
END
attach() { # POOL
    ask volume attach db --pool "$1" --backing "file:$T/db.img" --export "nbd+unix:///db?socket=$T/db.sock" --set idle_delay=off
}
fill() { # POOL: the cache is written to nearly everywhere
    attach "$1"
    for _ in 1 2; do python3 "$T/fill.py" "$T/db.sock" || fail "it cannot be filled"; done
    ask volume detach db
}
usable() { ask pool create again --device "$1" && ask pool remove again --erase; }
zeroes() { blkdiscard --force --zeroout "$FLASH" 2>/dev/null || fail "blkdiscard"; }
not_blank() { refused 1 "$2" "$FOREBAY" pool create again --device "$1" --admin "$ADMIN"; }
serve

say "a device, and a file, after pool remove --erase"
for place in "$FLASH" "$T/flash.img:48MiB"; do
    ask pool create fast --device "$place"
    fill fast
    ask pool remove fast --erase
    usable "$place"
done
[ ! -s "$T/flash.img" ] || fail "the file is not empty: $(wc -c <"$T/flash.img")"
refused 1 "there is no cache file
give its size" "$FOREBAY" pool create again --device "$T/flash.img" --admin "$ADMIN"
ln -s flash.img "$T/link.img"
usable "$T/link.img:32MiB"
[ -L "$T/link.img" ] || fail "the link is gone"

say "a device that left by pool shrink, and what pool replace left"
ask pool create fast --device "$T/first.img:32MiB"
ask pool grow fast --device "$FLASH"
fill fast
ask pool shrink fast --device "$FLASH"
usable "$FLASH"
ask pool grow fast --device "$FLASH"
fill fast
ask pool shrink fast --size 20MiB # of the device: what is behind that is as before
ask pool replace fast --old "$FLASH" --device "$OTHER"
usable "$FLASH"
ask pool shrink fast --device "$OTHER"
usable "$OTHER"
ask pool replace fast --device "$FLASH"
usable "$T/first.img:16MiB"
ask pool remove fast --erase
usable "$FLASH"
[ "$(find "$T/state/replaced" -type f | wc -l)" = 0 ] || fail "something is listed: $(ls "$T/state/replaced")"

say "a mirrored pool"
ask pool create fast --mirror --device "$FLASH" --device "$OTHER"
fill fast
ask pool remove fast --erase
usable "$FLASH"
usable "$OTHER"

say "what somebody puts on it afterwards is theirs"
mkfs.ext4 -q "$FLASH"
not_blank "$FLASH" 'cannot be used as a cache'
zeroes
mkswap "$FLASH" >/dev/null
not_blank "$FLASH" 'cannot be used as a cache'
zeroes
printf '\x55\xaa' | dd of="$FLASH" bs=1 seek=510 conv=notrunc,fsync status=none # a partition table
not_blank "$FLASH" 'cannot be used as a cache'
zeroes
for at in 95 40; do # the end, and somewhere in the middle
    usable "$FLASH"
    dd if=/dev/urandom of="$FLASH" bs=1M count=1 seek=$at conv=notrunc,fsync status=none
    not_blank "$FLASH" 'something else may follow'
    zeroes
done

say "what was never the cache's is not touched, and is in the way as before"
head -c 1M /dev/urandom >"$T/theirs"
dd if="$T/theirs" of="$FLASH" bs=1M seek=95 conv=notrunc,fsync status=none
ask pool create fast --device "$FLASH:48MiB" --force
fill fast
ask pool remove fast --erase
cmp -n 1048576 "$FLASH" "$T/theirs" --ignore-initial="$((95 << 20)):0" || fail "what is behind the cache was written to"
not_blank "$FLASH" 'something else may follow'
zeroes

say "a device that is in use, and one of a cache that is not open"
ask pool create fast --device "$FLASH"
refused '[12]' 'is a cache device' "$FOREBAY" pool create again --device "$FLASH" --admin "$ADMIN"
fill fast
unserve
rm "$T/db.img" && truncate -s 64M "$T/db.img"
sed -i '/^\[pool.fast\]/,$d' "$T/forebay.toml"
serve
refused 1 'cannot be used as a cache' "$FOREBAY" pool create again --mirror --device "$FLASH" --device "$OTHER" --admin "$ADMIN"
ask pool create fast --device "$FLASH"
ask pool remove fast --erase
unserve

# --- kill -9

killed_at() { # SYSCALL:NUMBER COMMAND...: the daemon is killed when a thread of it makes the call for so many times
    local call=${1%:*} when=${1#*:} tracer
    shift
    strace -f -qq -o /dev/null -p "$DAEMON" -e "trace=$call" -e "inject=$call:signal=KILL:when=$when" 2>"$T/strace.err" &
    tracer=$!
    local tries=100
    until grep -q "^TracerPid:.*$tracer" "/proc/$DAEMON/status"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || skip "nothing may be traced here: $(cat "$T/strace.err")"
        sleep 0.05
    done
    timeout 60 "$FOREBAY" "$@" --admin "$ADMIN" >"$T/killed.out" 2>&1 || true
    # The daemon first: who traces a thread that waits in the kernel does not end before that thread does.
    kill -9 "$DAEMON" 2>/dev/null || true
    wait "$DAEMON" 2>/dev/null || true
    DAEMON=
    kill "$tracer" 2>/dev/null || true
    wait "$tracer" 2>/dev/null || true
}
there() { grep -q '^\[pool.fast\]' "$T/forebay.toml"; }
steps=(rename:1 rename:2 rename:3 rename:4 unlink:1 unlink:2 pwrite64:1 pwrite64:2 pwrite64:5 pwrite64:200 fdatasync:1 fdatasync:2 fdatasync:3)

say "killed while it removes a pool and erases its devices"
stays=0 gone=0
for step in "${steps[@]}"; do
    zeroes
    serve
    ask pool create fast --device "$T/first.img:32MiB"
    ask pool grow fast --device "$FLASH"
    fill fast
    killed_at "$step" pool remove fast --erase
    serve
    if there; then
        stays=$((stays + 1))
        ask pool show fast
        ! grep -q 'NOT OPEN' "$T/ask.out" || fail "$step: it is configured, and not open: $(cat "$T/ask.out")"
        ask pool remove fast --erase
    else
        gone=$((gone + 1))
    fi
    ask pool create fast --device "$T/third.img:16MiB" # the name
    ask pool remove fast --erase
    usable "$FLASH" || fail "$step"
    usable "$T/first.img:16MiB" || fail "$step"
    [ -z "$(find "$T/state/caches" -name '*.json')" ] || fail "$step: something is recorded: $(cat "$T"/state/caches/*.json)"
    unserve
done
[ "$stays" -gt 0 ] && [ "$gone" -gt 0 ] || fail "$stays times it was there, $gone times it was gone: the kills are elsewhere"

say "killed while it exports a pool with dirty data"
stays=0 gone=0
for step in rename:1 rename:2 rename:3 rename:4 rename:5 pwrite64:1 pwrite64:2; do
    serve
    ask pool create fast --device "$T/first.img:48MiB"
    attach fast
    python3 "$T/fill.py" "$T/db.sock" || fail "it cannot be filled"
    killed_at "$step" pool export fast
    serve
    if there; then
        stays=$((stays + 1))
        ask volume show db
        grep -q 'state: *absent' "$T/ask.out" && fail "$step: its volume is not attached"
        ask pool export fast
    else
        gone=$((gone + 1))
    fi
    ask pool create fast --device "$T/third.img:16MiB" # the name; the exported cache is on another host by now
    ask pool remove fast --erase
    ask pool import --device "$T/first.img"
    ask volume detach db
    ask pool remove fast --erase
    unserve
done
[ "$stays" -gt 0 ] && [ "$gone" -gt 0 ] || fail "$stays times it was there, $gone times it was gone: the kills are elsewhere"

say "a cache that somebody has used since is not erased by the next start"
serve
ask pool create fast --device "$T/first.img:16MiB"
killed_at ftruncate:1 pool remove fast --erase
! there || fail "it is still in the file"
export STATE_DIRECTORY=$T/elsewhere
BACKING=$T/db.img CACHE=$T/first.img CACHE_SIZE=16MiB
start
stop
unset STATE_DIRECTORY
serve
logged 'not erased.*first.img was used since'
[ -s "$T/first.img" ] || fail "it is erased"
unserve
hint=$(grep -o "rm $T/state/caches/[0-9a-f]*.json" "$T/stderr" | head -n 1)
$hint || fail "the hint does not work: $hint"
serve
if grep -q 'used since' "$T/stderr"; then fail "it is still said"; fi
ask pool create fast --device "$T/first.img"
unserve

#!/usr/bin/env bash
# A backing store that is elsewhere than the configuration says: everybody is told the command, which takes the right store and no other,
# and writes it into the file. A wrong disk, an older copy, a smaller one, one in use, and a path with a typo leave everything as it was.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need qemu-io losetup curl

truncate -s 32M "$T/disk.img"
URI="nbd+unix:///db?socket=$T/nbd.sock"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
END
client() { qemu-io -f raw "$@" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
reads() { # PATTERN
    client -c "read -P $1 4M 2M" "$URI"
    ! grep -q 'verification failed' "$T/qemu-io.out" || fail "it reads something else: $(cat "$T/qemu-io.out")"
}
says() { grep -q -- "$1" "$T/ask.out" || { cat "$T/ask.out"; fail "it does not say '$1'"; }; }
backing() { grep -n '^backing' "$T/forebay.toml"; }
moved() { # CODES WORDS PATH: refused, and the file is what it was
    local before
    before=$(cat "$T/forebay.toml")
    refused "$1" "$2" "$FOREBAY" volume attach db --backing "$3" --admin "$ADMIN"
    [ "$before" = "$(cat "$T/forebay.toml")" ] || fail "the file was changed: $(diff <(echo "$before") "$T/forebay.toml")"
    ask volume list
    says 'db .*absent'
}

serve
ask volume attach db --pool fast --backing "file:$T/disk.img" --export "$URI" --set idle_delay=off
client -c 'write -P 0x11 0 4M' -c flush "$URI"
ask flush db
client -c 'write -P 0x31 4M 2M' -c flush "$URI"
sed -i 's|^backing = .*|& # the slow one|' "$T/forebay.toml"
refused 1 'attached already' "$FOREBAY" volume attach db --backing "file:$T/other.img" --admin "$ADMIN"
unserve

say "it is not where it was: everybody names the command"
cp "$T/disk.img" "$T/older.img"
mkdir "$T/new"
mv "$T/disk.img" "$T/new/disk.img"
serve
COMMAND='forebay volume attach db --backing'
logged "$COMMAND"
for told in status "pool show fast" "volume show db" alarms "alarms --json" "volume show db --json"; do
    read -ra words <<<"$told"
    ask "${words[@]}"
    case $told in
        "pool show fast") says 'db, 2.0 MiB dirty' ;;
        *) says "$COMMAND" ;;
    esac
done
curl -s --unix-socket "$ADMIN" http://forebay/v1/volumes/db >"$T/ask.out"
says "$COMMAND"

say "nothing else is taken"
head -c 32M /dev/urandom >"$T/other.img"
head -c 16M "$T/new/disk.img" >"$T/small.img"
moved 1 'no such file' "file:$T/new/disc.img"
moved 1 'sampled blocks are not as the cache left them' "file:$T/other.img"
moved 1 'changed|another time|tells' "file:$T/older.img" # a copy, with another time
moved 1 'has 16777216 bytes, and the volume 33554432' "file:$T/small.img"
moved '[12]' 'cache device of pool fast' "file:$T/flash.img"
truncate -s 32M "$T/their.img"
ask volume attach their --pool fast --backing "file:$T/their.img"
moved '[12]' 'backing store of volume .*their' "file:$T/their.img"
ask volume detach their
truncate -s 32M "$T/empty.img"
moved 1 'sampled|tells' "file:$T/empty.img"
refused 1 'give --backing' "$FOREBAY" volume attach db --backing "file:$T/new/disk.img" --set mode=writethrough --admin "$ADMIN"
refused 1 "$COMMAND file://$T/new/disk.img" \
    "$FOREBAY" volume attach mine --pool fast --backing "file:$T/new/disk.img" --admin "$ADMIN"

say "the right one is, and stays"
ask volume attach db --backing "file:$T/new/disk.img"
backing | grep "new/disk.img.*# the slow one" >/dev/null || fail "$(cat "$T/forebay.toml")"
reads 0x31
ask alarms
says 'no alarms'
ask events --volume db
says "db is attached; its backing store is file://$T/new/disk.img now, not file://$T/disk.img"
logged "its backing store is file://$T/new/disk.img now"
refused 1 'attached already' "$FOREBAY" volume attach db --backing "file:$T/new/disk.img" --admin "$ADMIN"
unserve
serve
reads 0x31

say "after kill -9, and moved back"
client -c 'write -P 0x32 4M 2M' -c flush "$URI"
crash
mv "$T/new/disk.img" "$T/back.img"
serve
moved 1 'sampled|tells|changed' "file:$T/older.img"
moved 1 'sampled|tells|changed' "file:$T/empty.img"
ask volume attach db --backing "file:$T/back.img"
reads 0x32
ask flush db
cmp -n 2097152 -i 4194304:0 "$T/back.img" <(head -c 2M /dev/zero | tr '\0' '\62') || fail "what was dirty is not on the store"

say "a copy is taken if the operator says so"
client -c 'write -P 0x33 4M 2M' -c flush "$URI"
unserve
cp "$T/back.img" "$T/copy.img"
touch -d 2001-01-01 "$T/copy.img"
mv "$T/back.img" "$T/away.img"
serve
moved 1 'on_backing_change=keep-dirty' "file:$T/copy.img"
ask set db on_backing_change=keep-dirty
ask volume attach db --backing "file:$T/copy.img"
ask set db on_backing_change=
reads 0x33
ask volume detach db

say "a disk that has another name now"
truncate -s 32M "$T/a.raw"
truncate -s 32M "$T/b.raw"
head -c 8M /dev/urandom | dd of="$T/a.raw" conv=notrunc status=none
A=$(losetup -f --show "$T/a.raw") || skip "there are no loop devices"
ask volume attach db --pool fast --backing "$A" --export "$URI" --set idle_delay=off
client -c 'write -P 0x34 4M 2M' -c flush "$URI"
unserve
losetup -d "$A"
A=$(losetup -f --show "$T/b.raw") # another disk has the name
on_exit "losetup -d $A"
B=$(losetup -f --show "$T/a.raw")
on_exit "losetup -d $B"
serve
ask volume list
says 'db .*absent'
ask volume attach db --backing "$B"
reads 0x34
ask flush db
ask volume detach db
ask pool remove fast --erase
unserve

#!/usr/bin/env bash
# FUSE files that would hide each other, backing stores and cache devices that lie on files of the daemon itself, and places where
# another daemon that is stopped has its mount: refused at once, by the check or by the attach, with a reason. What is served goes on,
# SIGTERM ends the daemon, and after kill -9 nothing is left.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/fuse-lib.sh"
need losetup mkfs.ext4
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"

on_exit abort_fuse

for name in a b c d e; do truncate -s 64M "$T/$name.img"; done
mkdir "$T/real"
ln -s real "$T/link"
A=$T/real/m/a

pools() {
    printf '[pool.fast]\ndevices = [{ path = "%s/flash.img", size = "64MiB" }]\n' "$T"
    printf '[pool.other]\ndevices = [{ path = "%s/other.img", size = "64MiB" }]\n' "$T"
}
volume() { # NAME POOL BACKING EXPORT
    printf '[volume.%s]\npool = "%s"\nbacking = "file:%s"\nexports = ["%s"]\n' "$1" "$2" "$3" "$4"
}
wrong() { # WORDS: the configuration on stdin is refused with them
    config
    refused 1 "$1" "$FOREBAY" config check "$T/forebay.toml"
}

say "the check refuses files that hide each other, also behind links and dots"
for place in "$T/real/m/b" "$T/link/m/b" "$T/real/x/../m/b" "$T/real/m//b" "$T/real/./m/b" "$T/real/m/deep/b" "$T/link/m/a"; do
    { pools; volume a fast "$T/a.img" "fuse:$A"; volume b other "$T/b.img" "fuse:$place"; } | wrong "volume .a"
done
say "the check refuses what would lie on a file of the daemon"
ln -s "$T/link/m/a" "$T/to-a"
for backing in "$A" "$T/link/m/a" "$T/to-a"; do
    { pools; volume a fast "$T/a.img" "fuse:$A"; volume b other "$backing" "fuse:$T/mb/b"; } | wrong "wait for itself"
done
{ pools; volume a fast "$A" "fuse:$A"; } | wrong "wait for itself"
{ pools; volume a fast "$T/to-a" "fuse:$A"; } | wrong "wait for itself"
{ pools; volume a fast "$T/mb/b" "fuse:$A"; volume b other "$A" "fuse:$T/mb/b"; } | wrong "wait for itself"
{ pools; volume a fast "$T/a.img" "fuse:$A"; } | sed "s|$T/other.img|$A|" | wrong "wait for itself"

say "files beside each other that are there before are no problem"
mkdir "$T/both"
touch "$T/both/1" "$T/both/2"
{ pools; volume a fast "$T/a.img" "fuse:$T/both/1"; volume b fast "$T/b.img" "fuse:$T/both/2"; } | config
"$FOREBAY" config check "$T/forebay.toml" >/dev/null 2>&1 || fail "two files to be mounted on are refused"

{ pools; volume a fast "$T/a.img" "fuse:$A"; } | config
serve
still() { # WHAT: everything is answered
    timeout 10 dd if="$A" of=/dev/null bs=64K count=4 iflag=direct status=none || fail "the file is not answered: $1"
    timeout 20 "$FOREBAY" status --admin "$ADMIN" >/dev/null 2>&1 || [ $? -lt 100 ] || fail "no status: $1"
    timeout 10 "$FOREBAY" volume show a --admin "$ADMIN" >/dev/null || fail "the pool does not answer: $1"
}
no() { # WORDS COMMAND...: the operator's command is refused with these words
    local words=$1
    shift
    refused '1|2|3' "$words" timeout 40 "$FOREBAY" "$@" --admin "$ADMIN"
    still "$*"
}
still "at first"
say "the attach refuses the same while the file is served"
for place in "$T/real/m/b" "$T/link/m/b" "$T/real/m/a" "$T/link/m/a" "$T/real/m/deep/b"; do
    no 'volume .a|used by' volume attach b --pool fast --backing "file:$T/b.img" --export "fuse:$place"
done
for backing in "$A" "$T/link/m/a" "$T/to-a"; do
    for pool in fast other; do
        no 'wait for itself' volume attach b --pool "$pool" --backing "file:$backing" --export "fuse:$T/mb/b"
    done
done
say "also through a loop device, and through a file system on one"
LOOP=$(losetup --show -f "$A")
no 'wait for itself' volume attach b --pool other --backing "$LOOP" --export "fuse:$T/mb/b"
no 'wait for itself' pool create third --device "$LOOP"
mkfs.ext4 -q "$LOOP"
mkdir "$T/fs"
mount "$LOOP" "$T/fs"
truncate -s 8M "$T/fs/c.img"
no 'wait for itself' volume attach b --pool other --backing "file:$T/fs/c.img" --export "fuse:$T/mb/b"
no 'wait for itself' pool create third --device "$T/fs/third.img:48MiB"
[ ! -e "$T/fs/third.img" ] || fail "a cache file was left there"
unmount "$LOOP" "$T/fs"
losetup -d "$LOOP"
no 'wait for itself' pool create third --device "$A"

say "a bind mount of the folder is seen through"
mkdir "$T/bind"
mount --bind "$T/real/m" "$T/bind"
no 'wait for itself' volume attach b --pool other --backing "file:$T/bind/a" --export "fuse:$T/mb/b"
umount "$T/bind"

say "what another daemon serves that is stopped is given up after a while"
mkdir "$T/theirs" "$T/their-state"
# Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
"$FOREBAY" run --io psync --backing "file:$T/d.img" --cache "$T/d.cache:64MiB" --export "fuse:$T/theirs/d" >"$T/d.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs KILL $OTHER"
eventually "$READY_SECONDS" [ -e "$T/theirs/d" ] || fail "the other daemon: $(cat "$T/d.out")"
kill -STOP $OTHER
refuse_slowly() { # WORDS COMMAND...: as `no`, and what is served is served meanwhile
    local words=$1
    shift
    refused '1|2|3' "$words" timeout 60 "$FOREBAY" "$@" --admin "$ADMIN" &
    local asking=$!
    for _ in 1 2 3 4 5 6; do
        sleep 0.5
        still "while $*"
    done
    wait $asking || fail "$*"
    still "$*"
}
refuse_slowly 'does not answer' volume attach b --pool fast --backing "file:$T/b.img" --export "fuse:$T/theirs/d"
refuse_slowly 'does not answer' volume attach b --pool fast --backing "file:$T/b.img" --export "fuse:$T/theirs/e"
refuse_slowly 'does not answer' volume attach b --pool fast --backing "file:$T/theirs/d" --export "fuse:$T/mb/b"

say "after all that SIGTERM ends it"
kill -TERM "$DAEMON"
eventually 20 bash -c "! kill -0 $DAEMON 2>/dev/null || grep -q '^State:.*Z' /proc/$DAEMON/status" || fail "SIGTERM does not end it"
wait "$DAEMON" || fail "it ended with code $?"
DAEMON=

say "and kill -9 leaves nothing"
serve
"$FOREBAY" volume attach b --pool fast --backing "file:$T/b.img" --export "fuse:$T/theirs/d" --admin "$ADMIN" >/dev/null 2>&1 &
sleep 1
kill -9 "$DAEMON"
eventually 10 bash -c "! kill -0 $DAEMON 2>/dev/null || grep -q '^State:.*Z' /proc/$DAEMON/status" || fail "it cannot be ended"
wait "$DAEMON" 2>/dev/null || true
DAEMON=
kill -CONT $OTHER

#!/usr/bin/env bash
# A mirrored cache: either of its two devices may die while it is used. No client sees an error, nothing is lost, a restart goes on
# with the other one, the stale one alone is refused, and another device gets what it must have while the cache is used. Then
# the OTHER one dies, and every byte is still there.
#
# A device is a file on a tmpfs of its own. It fails for writes when the tmpfs is full, and for everything when the file is cut and
# the tmpfs leaves no room to write it again.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need mount

flash() { # NAME
    mkdir -p "$T/$1"
    mount -t tmpfs -o size=80M tmpfs "$T/$1" || skip "no tmpfs may be mounted here"
    on_exit "umount -l $T/$1"
}
for name in a b c d; do flash "$name"; done
truncate -s 64M "$T/db.img"
config <<END
[pool.safe]
devices = [{ path = "$T/a/cache.img", size = "64MiB" }, { path = "$T/b/cache.img", size = "64MiB" }]
mirror = true
cache_allocation = "sparse"

[volume.db]
pool = "safe"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/db.sock"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END

fio_on() { # NAME OPTION...: each name has a region of the volume, and what is verified is what that name has written
    verifies "$1" --ioengine=nbd --uri="nbd+unix:///db?socket=$T/db.sock" --iodepth=8 --bs=16k "${@:2}" || {
        cat "$T/fio-$1.out"
        fail "fio $1: an error, or wrong data"
    }
}
OLD=(--rw=randwrite --offset=0 --size=8M)
NEW=(--rw=randwrite --offset=16M --size=8M)
LAST=(--rw=randwrite --offset=32M --size=8M)
degraded() {
    ask alarms --json
    grep -q cache.degraded "$T/ask.out"
}
not_degraded() { ! degraded; }
whole() {
    ask pool show safe
    grep -q 'ok, mirrored' "$T/ask.out"
}
busy() { # fio in the background, until at_ease ends it
    (
        cd "$T"
        exec fio --name=busy --ioengine=nbd --uri="nbd+unix:///db?socket=$T/db.sock" --iodepth=8 --rw=randrw --bs=16k \
            --offset=48M --size=8M --time_based --runtime=120 --output="$T/fio-busy.out"
    ) &
    FIO=$!
    on_exit "kill_jobs KILL $FIO"
    sleep 1
}
at_ease() { # it must have seen no error until then
    kill -TERM "$FIO" 2>/dev/null || fail "fio has ended by itself: $(cat "$T/fio-busy.out")"
    wait "$FIO" || true # fio ends with a code of its own when it is told to
    grep -q 'err= 0' "$T/fio-busy.out" || fail "an error while a device died: $(cat "$T/fio-busy.out")"
}

say "what cannot be is refused"
serve
refused '[1-9]' 'two devices, not on 3' "$FOREBAY" pool create no --mirror --device "$T/1:8MiB" --device "$T/2:8MiB" \
    --device "$T/3:8MiB" --admin "$ADMIN"
refused '[1-9]' 'mirrored: its size cannot be changed' "$FOREBAY" pool grow safe --size max --admin "$ADMIN"
refused '[1-9]' 'has 2 devices' "$FOREBAY" pool replace safe --device "$T/d/cache.img:64MiB" --admin "$ADMIN"
whole || fail "not whole: $(cat "$T/ask.out")"

say "one device takes no more writes: no error, and an alarm"
fio_on old "${OLD[@]}" --do_verify=1
head -c 80M /dev/zero >"$T/b/filler" 2>/dev/null || true # before the log has been everywhere in the file
busy
eventually 40 degraded || fail "no alarm: $(cat "$T/stderr")"
fio_on new "${NEW[@]}" --do_verify=1
at_ease
ask pool show safe
grep -q 'DEGRADED' "$T/ask.out" || fail "pool show does not say it: $(cat "$T/ask.out")"
grep -q 'b/cache.img.*out' "$T/ask.out" || fail "pool show does not say which: $(cat "$T/ask.out")"
[ "$(grep -c '"out"' "$T"/state/mirrors/*.json)" = 1 ] || fail "no note: $(ls -R "$T/state")"
"$FOREBAY" stats db --format prometheus --admin "$ADMIN" >/dev/null

say "killed: the restart goes on with the other one, also if both are found"
crash
serve
degraded || fail "the alarm is gone after a restart"
fio_on old "${OLD[@]}" --verify_only=1
fio_on new "${NEW[@]}" --verify_only=1
unserve

say "the stale one alone is refused"
mv "$T/a/cache.img" "$T/a/away.img"
serve
logged 'b/cache.img was put out before'
ask alarms --json
grep -q pool.failed "$T/ask.out" || fail "no alarm: $(cat "$T/ask.out")"
unserve
refused 1 'put out of a mirrored cache' "$FOREBAY" salvage "$T/b/cache.img" --to "$T/rescued" --state-dir "$T/state"
mv "$T/a/away.img" "$T/a/cache.img"
say "offline: the one that counts, and the one that does not"
refused 1 'it was put out' "$FOREBAY" check "$T/a/cache.img" "$T/b/cache.img"
"$FOREBAY" salvage "$T/a/cache.img" --to "$T/rescued" --state-dir "$T/state" >"$T/salvage.out" 2>&1 || {
    cat "$T/salvage.out"
    fail "salvage of the device that counts"
}

say "another device gets what it must have while the cache is used"
serve
busy
ask pool replace safe --device "$T/c/cache.img:64MiB"
at_ease
whole || fail "not whole: $(cat "$T/ask.out")"
eventually 20 not_degraded || fail "the alarm stays"
ask jobs
grep -q 'rebuild.*completed' "$T/ask.out" || fail "no job: $(cat "$T/ask.out")"
grep -q 'c/cache.img' "$T/forebay.toml" || fail "the configuration does not know the new device"
ask pool scrub safe
fio_on last "${LAST[@]}" --do_verify=1

say "the OTHER device is gone: no error, every byte"
busy
eventually 20 cut_off "$T/a/cache.img" 64k || fail "the cache file cannot be taken away"
eventually 40 degraded || fail "no alarm: $(cat "$T/stderr")"
at_ease
fio_on old "${OLD[@]}" --verify_only=1
fio_on new "${NEW[@]}" --verify_only=1
fio_on last "${LAST[@]}" --verify_only=1
crash
serve
for name in old new last; do
    case $name in old) region=("${OLD[@]}") ;; new) region=("${NEW[@]}") ;; *) region=("${LAST[@]}") ;; esac
    fio_on "$name" "${region[@]}" --verify_only=1
done
unserve

say "an empty device in the configuration: an interrupted rebuild begins again by itself"
sed -i "s|$T/a/cache.img|$T/d/cache.img|" "$T/forebay.toml"
truncate -s 64M "$T/d/cache.img"
serve
eventually 60 whole || fail "the rebuild does not end: $(cat "$T/ask.out" "$T/stderr")"
eventually 20 not_degraded || fail "the alarm stays"
unserve
"$FOREBAY" check "$T/c/cache.img" "$T/d/cache.img" >"$T/check.out" 2>&1 || { cat "$T/check.out"; fail "check of both devices"; }

say "everything is written back, and the backing store alone is right"
serve
ask volume detach db
for name in old new last; do
    case $name in old) region=("${OLD[@]}") ;; new) region=("${NEW[@]}") ;; *) region=("${LAST[@]}") ;; esac
    verifies "$name" --ioengine=psync --filename="$T/db.img" --bs=16k --verify_only=1 "${region[@]}" || {
        cat "$T/fio-$name.out"
        fail "the backing store alone is wrong"
    }
done
unserve

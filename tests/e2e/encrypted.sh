#!/usr/bin/env bash
# A cache encrypted at rest: what clients write is not on the cache device, kill -9 loses nothing, and without the right key
# nothing is opened or changed. check, inspect and salvage with the key; a pool of two devices, a credential, an upgrade.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 nbdcopy fio

export STATE_DIRECTORY=$T/records
mkdir "$STATE_DIRECTORY"
PATTERN="what a client of forebay wrote, in clear"
python3 -c "import sys; sys.stdout.write('$PATTERN\n' * 200000)" >"$T/pattern"
truncate -s 8M "$T/pattern"
make_backing 64M

key() { # PATH: a new key
    (umask 077 && head -c 64 /dev/urandom >"$1")
}
key "$T/key"
key "$T/other-key"
WITH=(--set "encryption_key_file=$T/key" --set idle_delay=off --set dirty_low_pct=80 --set dirty_high_pct=80)
# As start does it, for commands that must be refused.
RUN=("$FOREBAY" run --backing "file:$BACKING" --cache "$CACHE:$CACHE_SIZE" --export "$URI")
shows() { grep -aqF "$PATTERN" "$1"; }
copied() { # WHAT: the volume holds the pattern
    nbdcopy "$URI" "$T/back"
    cmp -n "$(stat -c %s "$T/pattern")" "$T/back" "$T/pattern" || fail "$1"
}

say "without a key it shows: the search can find something"
start --set idle_delay=off
nbdcopy --flush "$T/pattern" "$URI"
stop
shows "$CACHE" || fail "the pattern is not even on a cache in clear"
before=$(checksum "$CACHE")
refused 1 "is not encrypted, but a key was given" "${RUN[@]}" "${WITH[@]}"
refused 1 "is not encrypted" "$FOREBAY" check "$CACHE" --key-file "$T/key"
[ "$before" = "$(checksum "$CACHE")" ] || fail "a cache that was refused was changed"
rm -r "$CACHE" "$BACKING" "$STATE_DIRECTORY/caches"
make_backing 64M

say "with a key nothing shows, though everything is only in the cache"
start "${WITH[@]}"
nbdcopy --flush "$T/pattern" "$URI"
shows "$BACKING" && fail "it was destaged: this proves nothing"
shows "$CACHE" && fail "what a client wrote is on the cache device"
grep -aqE 'FBAT|FBAYCKPT' "$CACHE" && fail "structures of the format are on the cache device in clear"
copied "while it runs"
crash

say "kill -9: refused without the right key, unchanged, and whole with it"
before=$(checksum "$CACHE")
refused 1 "is encrypted, and no key was given" "${RUN[@]}"
refused 1 "is not that of the cache" "${RUN[@]}" --set "encryption_key_file=$T/other-key"
refused 1 "cannot be read" "${RUN[@]}" --set "encryption_key_file=$T/no-key"
head -c 32 "$T/key" >"$T/short-key"
chmod 600 "$T/short-key"
refused 1 "it has 32 bytes" "${RUN[@]}" --set "encryption_key_file=$T/short-key"
cp "$T/key" "$T/open-key"
chmod 644 "$T/open-key"
refused 1 "everybody on this machine" "${RUN[@]}" --set "encryption_key_file=$T/open-key"
refused 2 "whole path" "${RUN[@]}" --set encryption_key_file=key
[ "$before" = "$(checksum "$CACHE")" ] || fail "a cache that was refused was changed"
CREDENTIALS_DIRECTORY=$T start --set encryption_key_file=credential:key --set idle_delay=off
copied "after kill -9, with a credential"
stop
od -An -v -tx1 "$T/key" | tr -d ' \n' >"$T/hex-key"
chmod 600 "$T/hex-key"
start --set "encryption_key_file=$T/hex-key" --set idle_delay=off
copied "with the key in digits"

say "fio writes and verifies, also after a restart"
job() {
    verifies j --ioengine=nbd --uri="$URI" --iodepth=16 --size=24M --offset=16M --rw=randwrite --bsrange=512-128k \
        --blockalign=512 "$@" || { cat "$T/fio-j.out"; fail "fio $*"; }
}
if fio --enghelp | grep -w nbd >/dev/null; then
    job --do_verify=1
    stop
    start "${WITH[@]}"
    job --verify_only=1
fi
stop

say "kill -9 in the middle of writes"
rm -rf "$CACHE" "$BACKING" "$STATE_DIRECTORY/caches"
make_backing 48M
start "${WITH[@]}"
: >"$T/writer.out"
writer write --seconds 60 >"$T/writer.out" 2>&1 &
WRITER=$!
for ((tries = 0; tries < 600; tries++)); do
    if grep -q '^connected' "$T/writer.out" || ! kill -0 "$WRITER" 2>/dev/null; then break; fi
    sleep 0.05
done
sleep 2
crash
wait "$WRITER" || { cat "$T/writer.out"; fail "the writer"; }

say "offline: nothing without the key, everything with it"
for tool in check inspect "salvage --to $T/none"; do
    # shellcheck disable=SC2086 # several words
    refused 1 "--key-file" "$FOREBAY" $tool "$CACHE"
    # shellcheck disable=SC2086 # as above
    refused 1 "is not that of the cache" "$FOREBAY" $tool "$CACHE" --key-file "$T/other-key"
done
"$FOREBAY" check "$CACHE" --key-file "$T/key" >"$T/check.out" || { cat "$T/check.out"; fail "check"; }
grep -q 'AES-256-XTS' "$T/check.out" || fail "check does not say that it is encrypted"
UUID=$(sed -n 's/^ *identity *//p' "$T/check.out")
"$FOREBAY" inspect "$CACHE" --key-file "$T/key" --segments --batches >"$T/inspect.out" || fail "inspect"
judge() { # IMAGE WHAT
    cp "$T/state" "$T/state.judge"
    python3 "$E2E/nbd_writer.py" check-file --state "$T/state.judge" --file "$1" >"$T/judge.out" ||
        { tail -n 5 "$T/judge.out"; fail "$2"; }
}
cp "$BACKING" "$T/copy.img"
"$FOREBAY" salvage "$CACHE" --key-file "$T/key" --volume vol --onto "file:$T/copy.img" >"$T/salvage.out" ||
    { cat "$T/salvage.out"; fail "salvage"; }
judge "$T/copy.img" "backing store and salvaged data are not what was acknowledged"

say "both superblocks are gone: the identity is what the keys are derived with"
"$FOREBAY" salvage "$CACHE" --key-file "$T/key" --to "$T/whole" >"$T/salvage.out" || fail "salvage into a folder"
cp "$CACHE" "$T/headless.img"
for block in 0 16; do
    dd if=/dev/zero of="$T/headless.img" bs=4096 count=1 seek="$block" conv=notrunc status=none
done
refused 1 "--uuid" "$FOREBAY" salvage "$T/headless.img" --key-file "$T/key" --to "$T/headless"
"$FOREBAY" salvage "$T/headless.img" --key-file "$T/key" --uuid "$UUID" --to "$T/headless" >"$T/salvage.out" ||
    { cat "$T/salvage.out"; fail "salvage without superblocks"; }
# The crash may have come when a checkpoint was written and no superblock named it yet: what it calls clean the backing store has.
cp "$BACKING" "$T/copy2.img"
python3 "$E2E/cache_damage.py" apply "$T/headless/vol.dirty" "$T/headless/vol.ranges" "$T/copy2.img"
assert_same "$T/copy.img" "$T/copy2.img" "other data without superblocks"

say "the daemon goes on with what was acknowledged"
start "${WITH[@]}"
writer verify >"$T/writer.out" || { cat "$T/writer.out"; fail "verify"; }
stop

say "a pool of two devices: what is on the second is encrypted too"
rm -f "$BACKING" "$CACHE"
make_backing 64M
config <<END
[pool.fast]
devices = [{ path = "$T/one.img", size = "16MiB" }]
encryption_key_file = "$T/key"

[volume.vol]
pool = "fast"
backing = "file:$BACKING"
exports = ["$URI"]
idle_delay = "off"
dirty_low_pct = 80
dirty_high_pct = 80
END
mv "$T/state" "$T/state.writer"
serve
ask pool grow fast --device "$T/two.img:48MiB"
for _ in 1 2 3; do nbdcopy --flush "$T/pattern" "$URI"; done
copied "on two devices"
shows "$T/one.img" && fail "it shows on the first device"
shows "$T/two.img" && fail "it shows on the second device"
[ "$(tail -c +1048577 "$T/two.img" | tr -d '\0' | head -c 100000 | wc -c)" = 100000 ] || fail "nothing is on the second device"

say "a successor that cannot read the key does not take over"
mv "$T/key" "$T/key.away"
refused 1 "key" "$FOREBAY" upgrade --admin "$ADMIN"
copied "after an upgrade that was refused"
mv "$T/key.away" "$T/key"
ask upgrade --json
DAEMON=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["to_pid"])' <"$T/ask.out")
copied "after an upgrade"
kill -9 "$DAEMON"
for ((tries = 0; tries < 200; tries++)); do
    kill -0 "$DAEMON" 2>/dev/null || break
    sleep 0.05
done
DAEMON=
serve
copied "after kill -9"
unserve
"$FOREBAY" check "$T/two.img" "$T/one.img" --key-file "$T/key" >"$T/check.out" || { cat "$T/check.out"; fail "check of two devices"; }

#!/usr/bin/env bash
# Dirty data of a volume that is not attached: it is shown everywhere, with an alarm; its backing store is not attached under
# another name, and its pool is not removed, until it was brought back or given up. What the messages say works as it stands.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need qemu-io curl

truncate -s 32M "$T/disk.img"
OLD="nbd+unix:///old?socket=$T/nbd.sock"
NEW="nbd+unix:///new?socket=$T/nbd.sock"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]
END
serve
client() { qemu-io -f raw "$@" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
says() { # WORDS: the last answer does
    grep -q -- "$1" "$T/ask.out" || { cat "$T/ask.out"; fail "it does not say '$1'"; }
}
says_not() { ! grep -q -- "$1" "$T/ask.out" || { cat "$T/ask.out"; fail "it says '$1'"; }; }

ask volume attach old --pool fast --backing "file:$T/disk.img" --export "$OLD" --set idle_delay=off
client -c 'write -P 0x31 4M 2M' -c flush "$OLD"
ask volume detach old --keep

say "everybody is told"
shown() {
    ask status
    says 'old .*absent.*2.0 MiB' && says 'volume old .*2.0 MiB.*its dirty data was kept; do not use its backing store'
    ask pool show fast
    says 'not attached.*old, 2.0 MiB dirty'
    ask volume list
    says 'old .*absent.*2.0 MiB'
    ask volume show old
    says 'it is not attached' && says '2.0 MiB'
    ask alarms --json
    says '"volume.absent"'
    curl -s --unix-socket "$ADMIN" http://forebay/metrics >"$T/ask.out"
    says 'forebay_absent_dirty_bytes{pool="fast",volume="old"} 2097152'
}
shown

say "after a restart, too; the stop says whose data it is"
unserve
grep -q 'not attached: old' "$T/stderr" || fail "the stop does not say whose data is dirty: $(tail -3 "$T/stderr")"
serve
shown

say "its store under another name, and the removal of its pool, are refused"
REFUSED=("$FOREBAY" volume attach new --pool fast --backing "file:$T/disk.img" --export "$NEW" --admin "$ADMIN")
refused '[1-9]' "volume old
2MiB of dirty data
forebay volume attach old --pool fast --backing file://$T/disk.img
forebay volume detach old --discard" "${REFUSED[@]}"
ln -s disk.img "$T/link.img"
refused '[1-9]' 'volume old' "$FOREBAY" volume attach new --pool fast --backing "file:$T/link.img" --export "$NEW" --admin "$ADMIN"
refused '[1-9]' "2MiB of dirty data of old" "$FOREBAY" pool remove fast --admin "$ADMIN"
refused '[1-9]' "2MiB of dirty data of old" "$FOREBAY" pool remove fast --erase --admin "$ADMIN"
refused '[1-9]' "only the cache has 2MiB" "$FOREBAY" volume detach old --admin "$ADMIN"

say "another store is attached as ever"
truncate -s 32M "$T/other.img"
ask volume attach new --pool fast --backing "file:$T/other.img" --export "$NEW"
ask volume detach new

say "brought back by what the message says"
ask volume attach old --pool fast --backing "file:$T/disk.img"
ask alarms --json
says_not '"volume.absent"'
ask flush old
cmp -n 2097152 -i 4194304:0 "$T/disk.img" <(head -c 2M /dev/zero | tr '\0' '\61') || fail "what was dirty is not on the store"
ask volume detach old

say "given up by what the message says"
ask volume attach old --pool fast --backing "file:$T/disk.img" --export "$OLD" --set idle_delay=off
client -c 'write -P 0x32 8M 1M' -c flush "$OLD"
ask volume detach old --keep
ask volume detach old --discard
ask alarms --json
says_not '"volume.absent"'
ask volume list
says_not old
ask volume attach new --pool fast --backing "file:$T/disk.img" --export "$NEW"
client -c 'read -P 0 8M 1M' "$NEW"
grep -q 'verification failed' "$T/qemu-io.out" && fail "what was given up is back"
ask volume detach new
ask pool remove fast
unserve

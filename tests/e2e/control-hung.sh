#!/usr/bin/env bash
# Control calls that have to do with something that does not answer (a backing store, a cache device, a name server) fail in time, say
# what does not answer, and hold up no other volume of the pool. The stores are files of another daemon, which is stopped.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 unshare
[ "$(id -u)" = 0 ] || skip "mounting needs root"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
READY_SECONDS=60

truncate -s 64M "$T/disk.img" "$T/good.img" "$T/third.img"
mkdir "$T/slow" "$T/other"
# Through /dev/fuse: who waits for a stopped server over io_uring cannot be killed (docs/use/fuse.md).
"$FOREBAY" run --io psync --backing "file:$T/disk.img" --cache "$T/other.img:64MiB" --export "fuse:$T/slow/disk.img" \
    --export "fuse:$T/other/disk.img" >"$T/other.out" 2>&1 &
OTHER=$!
on_exit "kill_jobs TERM $OTHER; umount -l $T/slow $T/other"
eventually "$READY_SECONDS" test -e "$T/other/disk.img" || fail "the slow stores are not there: $(cat "$T/other.out")"

# A name server that does not answer, which only the daemon asks.
cat >"$T/dns.py" <<'END'
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.99", 53))
    print("ready", flush=True)
    time.sleep(600)
END
python3 "$T/dns.py" >"$T/dns.out" 2>&1 &
on_exit "kill_jobs TERM $!"
eventually 10 grep -q ready "$T/dns.out" || skip "no name server can be made here: $(cat "$T/dns.out")"
echo 'nameserver 127.0.0.99' >"$T/resolv.conf"
REAL=$FOREBAY
cat >"$T/forebay" <<END
#!/bin/sh
[ "\$1" = serve ] || exec "$REAL" "\$@"
exec unshare -m "$T/own-mounts" "\$@"
END
cat >"$T/own-mounts" <<END
#!/bin/sh
# What other tests have mounted would stay mounted in here, and so be in use, after they have unmounted it.
awk '\$2 ~ "/forebay-e2e[.][^/]*/" && index(\$2, "$T/") != 1 { print \$2 }' /proc/self/mounts | tac | xargs -r -n1 umount -l 2>/dev/null
mount --bind "$T/resolv.conf" /etc/resolv.conf && exec "$REAL" "\$@"
END
chmod +x "$T/forebay" "$T/own-mounts"
unshare -m sh -c "mount --bind $T/resolv.conf /etc/resolv.conf" || skip "this machine has no /etc/resolv.conf, or no mounts"
FOREBAY=$T/forebay

base='[pool.fast]
devices = [{ path = "'$T'/flash.img", size = "64MiB" }]

[volume.good]
pool = "fast"
backing = "file:'$T'/good.img"
exports = ["nbd+unix:///good?socket='$T'/good.sock"]
'
config <<<"$base
[volume.hung]
pool = \"fast\"
backing = \"file:$T/slow/disk.img\"
exports = [\"nbd+unix:///hung?socket=$T/hung.sock\"]"

quick() { # a control call that has nothing to do with what hangs
    local began=$SECONDS
    timeout 20 "$REAL" "$@" --admin "$ADMIN" >"$T/quick.out" 2>&1 || fail "forebay $*: $(cat "$T/quick.out")"
    [ $((SECONDS - began)) -le 8 ] || fail "forebay $* took $((SECONDS - began)) s"
}
others_go_on() {
    quick volume show good
    quick stats good
    quick flush good
    timeout 5 nbdinfo --size "nbd+unix:///good?socket=$T/good.sock" >/dev/null || fail "good is not served"
}
slow() { # CODE WORDS COMMAND...: others go on while it is under way, and it ends in time
    local code=0 expected=$1 words=$2 pid began=$SECONDS
    shift 2
    "$REAL" "$@" --admin "$ADMIN" >"$T/slow.out" 2>&1 &
    pid=$!
    sleep 1
    others_go_on
    kill -0 "$pid" 2>/dev/null || fail "forebay $* did not wait: $(cat "$T/slow.out")"
    wait "$pid" || code=$?
    [ "$code" = "$expected" ] || fail "forebay $*: code $code, $(cat "$T/slow.out")"
    grep -Eq "$words" "$T/slow.out" || fail "forebay $*: $(cat "$T/slow.out")"
    [ $((SECONDS - began)) -le 40 ] || fail "forebay $* took $((SECONDS - began)) s"
}

serve
say "an export with a name that nobody resolves"
slow 1 'no address for slow.test' volume attach third --backing "file:$T/third.img" --export nbd://slow.test:10999/third
if grep -q third "$T/forebay.toml"; then fail "what failed is in the configuration"; fi
quick volume attach third --backing "file:$T/third.img"
quick volume detach third

kill -STOP "$OTHER"
sleep 1.5 # what the kernel knows of the file's size is forgotten
say "the size of a store that hangs"
slow 1 'backing store .*slow/disk.img of hung does not answer' volume resize hung 32MiB
refused 1 'backing store .*slow/disk.img of hung does not answer' "$REAL" volume resize hung max --admin "$ADMIN"
say "a cache device that hangs"
slow 1 'cache device .*other/disk.img does not answer' pool create second --device "$T/other/disk.img" --force
refused 1 'cache device .*other/disk.img does not answer' \
    "$REAL" pool grow fast --device "$T/other/disk.img" --force --admin "$ADMIN"
others_go_on
if grep -q 'other/disk.img' "$T/forebay.toml"; then fail "what failed is in the configuration"; fi
kill -CONT "$OTHER"
ask volume resize hung 32MiB
ask volume detach hung
unserve

say "a start with a cache device that hangs: the others are served, and it is opened once it answers"
config <<END
$base

[pool.second]
devices = [{ path = "$T/other/disk.img" }]
END
serve
ask pool open second --force
unserve
kill -STOP "$OTHER"
sleep 1.5
began=$SECONDS
serve
[ $((SECONDS - began)) -le 50 ] || fail "the start took $((SECONDS - began)) s"
timeout 5 nbdinfo --size "nbd+unix:///good?socket=$T/good.sock" >/dev/null || fail "good is not served"
"$REAL" alarms --admin "$ADMIN" >"$T/alarms.out"
grep -q 'does not answer' "$T/alarms.out" || fail "no alarm: $(cat "$T/alarms.out")"
kill -CONT "$OTHER"
opened() { "$REAL" pool show second --admin "$ADMIN" >/dev/null 2>&1; }
eventually 20 opened || fail "the pool stays closed: $("$REAL" status --admin "$ADMIN")"
unserve

#!/usr/bin/env bash
# The daemon as packaging/forebay.service runs it, as far as that can be had without systemd: another user, no capability, no
# way to new privileges, no file of its own open to others; and every system call that it makes is in the unit's filter.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/tls-lib.sh"
need setpriv strace nbdinfo nbdcopy openssl
[ "$(id -u)" -eq 0 ] || skip "another user can be had only as root"
UNIT=$ROOT/packaging/forebay.service

authority "$PKI/ca"
certificate "$PKI/ca" server server DNS:localhost
certificate "$PKI/ca" client alice
PORT=$(free_port)
OWNER=4711
truncate -s 32M "$T/vol.img"
config <<END
[tls.lan]
cert_file = "$PKI/server/server-cert.pem"
key_file = "$PKI/server/server-key.pem"
client_ca_file = "$PKI/ca/ca-cert.pem"

[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.vol]
pool = "fast"
backing = "file:$T/vol.img"
exports = ["nbds://127.0.0.1:$PORT/vol?tls=lan", "nbd+unix:///vol?socket=$T/nbd.sock"]
END
# The binary may be in a folder that others cannot enter.
install -m 755 "$FOREBAY" "$T/forebay"
chown -R $OWNER:$OWNER "$T"
chmod 755 "$T"

serve_traced() { # IO
    : >"$T/stderr"
    (
        umask 077
        renice -n -10 -p "$BASHPID" >/dev/null # not by so much: whoever runs the tests may be nice
        exec strace -f -qq -o "$T/trace.$1" -e 'trace=!futex' \
            setpriv --reuid $OWNER --regid $OWNER --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
            "$T/forebay" serve --config "$T/forebay.toml"
    ) >"$T/stdout" 2>>"$T/stderr" &
    TRACER=$!
    on_exit "kill_jobs KILL $TRACER"
    local tries=600
    until grep -q 'forebay: serving' "$T/stderr"; do
        kill -0 "$TRACER" 2>/dev/null || { cat "$T/stderr"; fail "the daemon ended before it was ready"; }
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "not ready"
        sleep 0.1
    done
}

for io in auto psync; do
    sed -i "/^io = /d; s/^devices = .*/&\nio = \"$io\"/" "$T/forebay.toml"
    say "serving with $io, as user $OWNER"
    serve_traced $io
    PID=$(pgrep -P "$TRACER" | head -n 1)
    grep -q "^Uid:.$OWNER.$OWNER" "/proc/$PID/status" || fail "it runs as somebody else"
    grep -q '^CapEff:.0000000000000000' "/proc/$PID/status" || fail "it has capabilities"
    grep -q '^NoNewPrivs:.1' "/proc/$PID/status" || fail "it could gain privileges"
    random_file "$T/in" 32
    nbdcopy --flush "$T/in" "nbds://localhost:$PORT/vol?tls-certificates=$PKI/alice"
    nbdcopy "nbd+unix:///vol?socket=$T/nbd.sock" "$T/out"
    assert_same "$T/in" "$T/out" "through a daemon without privileges"
    ask set vol mode=writethrough
    ask set vol mode=writeback
    ask reload
    ask volume resize vol 16MiB
    ask volume resize vol max
    ask pool grow fast --size 96MiB
    ask pool shrink fast --size 64MiB
    ask stats vol
    kill -TERM "$PID"
    wait "$TRACER" || fail "the daemon did not end well"
    find "$T/flash.img" -perm /007 | grep . >/dev/null && fail "others may use the cache"
done

need systemd-analyze
say "every system call is in the filter of the unit"
# The lines of the unit in their order: groups that are let in, groups that are taken out.
allowed() {
    local line word
    : >"$T/allowed"
    sed -n 's/^SystemCallFilter=//p' "$UNIT" | while read -r line; do
        local out=
        case $line in '~'*) out=yes line=${line#\~} ;; esac
        for word in $line; do
            names "$word" | sort -u >"$T/names"
            if [ -n "$out" ]; then sort "$T/allowed" | comm -23 - "$T/names" >"$T/left"; else sort -u "$T/allowed" "$T/names" >"$T/left"; fi
            mv "$T/left" "$T/allowed"
        done
    done
}
names() { # a system call, or a group with the groups in it
    local name
    case $1 in @*) ;; *) echo "$1" && return ;; esac
    systemd-analyze syscall-filter "$1" | sed '1d; s/#.*//; s/^ *//; /^$/d' | while read -r name; do names "$name"; done
}
allowed
[ "$(wc -l <"$T/allowed")" -gt 100 ] || fail "the filter was not understood"
# From the moment that the daemon itself runs: what setpriv did before is systemd's business.
for trace in "$T"/trace.*; do sed '1,/execve(.*forebay serve\|execve("[^"]*forebay"/d' "$trace"; done |
    sed -n 's/^[0-9]* *\([a-z0-9_]*\)(.*/\1/p' | sort -u >"$T/used"
[ "$(wc -l <"$T/used")" -gt 30 ] || fail "the trace was not understood"
comm -23 "$T/used" "$T/allowed" >"$T/missing"
[ ! -s "$T/missing" ] || fail "not in SystemCallFilter: $(paste -sd' ' "$T/missing")"
for needed in io_uring_setup io_uring_enter io_uring_register fallocate; do
    grep -qx $needed "$T/allowed" || fail "$needed is not let in"
done
for forbidden in setuid mount chown keyctl ptrace init_module; do
    if grep -qx $forbidden "$T/allowed"; then fail "$forbidden is let in"; fi
done
if ! grep -q io_uring_enter "$T/used"; then say "(no io_uring here: not traced)"; fi
say "$(wc -l <"$T/used") system calls used, $(wc -l <"$T/allowed") let in"
score=$(systemd-analyze security --offline=true --threshold=100 "$UNIT" | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
say "systemd-analyze security: $score"
grep -q "says \*\*$score\*\*\|says \*\*$score " "$ROOT/docs/operate/security.md" || fail "docs/operate/security.md states another score than $score"

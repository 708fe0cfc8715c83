#!/usr/bin/env bash
# `forebay serve` with a configuration that is wrong in each of the ways an operator makes, or beside a daemon that has the same:
# one list. Each says on stderr what is wrong, where and what to do, tells the service manager (systemctl status shows that), ends
# with 1, or serves the rest with an alarm; and changes nothing.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3

# The service manager: what it is told.
cat >"$T/notices.py" <<'END'
import socket, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening.bind(sys.argv[1])
while True:
    print(listening.recv(4096).decode(), end="", flush=True)
END
python3 "$T/notices.py" "$T/notify" >>"$T/notices" 2>/dev/null &
on_exit "kill_jobs TERM $!"
eventually 10 test -S "$T/notify" || fail "no notices"

mkdir "$T/w"
truncate -s 64M "$T/w/db.img" "$T/w/other.img"
TOKEN=$T/w/token
head -c 32 /dev/urandom | base64 >"$TOKEN"
chmod 600 "$TOKEN"
PORT=$(free_port)

# c: a configuration that is right; its parts are changed below by sed.
c() {
    cat <<END
[daemon]
admin_socket = "$T/w/admin.sock"
state_dir = "$T/w/state"
admin_tcp = { listen = "127.0.0.1:$PORT", token_file = "$TOKEN" }

[pool.fast]
devices = [{ path = "$T/w/flash.img", size = "64MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/w/db.img"
exports = ["nbd+unix:///db?socket=$T/w/db.sock"]
END
}
tree() { (cd "$T/w" && find . ! -name '*.sock' -printf '%p %s %m\n' | sort && sha256sum db.img other.img); }
told() { grep -a '^STATUS=' "$T/notices" | tail -n 1; }
serve_as() { NOTIFY_SOCKET=$T/notify "$FOREBAY" serve --config "$1"; }
export -f serve_as
export T FOREBAY

# ends WHAT WORDS STATUS [FILE]: with what is in the file (default: $T/w.toml) it ends with 1 and says the words, one a line; the manager
# is told something that matches; nothing is changed.
ends() {
    : >"$T/notices"
    tree >"$T/tree"
    refused 1 "$2" env NOTIFY_SOCKET="$T/notify" "$FOREBAY" serve --config "${4:-$T/w.toml}"
    tree | diff "$T/tree" - || fail "$1: something was changed"
    eventually 20 eval "told | grep -Eiq -- '$3'" || fail "$1: the service manager is told: $(told)"
    ! grep -q READY=1 "$T/notices" || fail "$1: it says that it serves"
    echo "  $1"
}
changed() { c | sed "$@" >"$T/w.toml"; }

say "a configuration that cannot be used"
cannot='w.toml: cannot be used: forebay config check .*w.toml'
changed 's/^backing/backng/'
ends "a typo in a key" "unknown key .backng. in volume.db
w.toml:11:1
did you mean .backing" "$cannot"
changed '$a mode = "writebck"'
ends "a typo in a value" 'w.toml:13:8
did you mean "writeback"' "$cannot"
{ c && c | sed -n '/^.volume/,$p'; } >"$T/w.toml"
ends "a volume twice" '.db. is given twice
w.toml:14' "$cannot"
{ c && c | sed -n '/^.volume/,$p' | sed 's/volume.db/volume.two/'; } >"$T/w.toml"
ends "a disk and an export twice" 'is the backing store of volume .db. already
belongs to volume .db. already
first used here' "$cannot"
{ c && printf '[pool.two]\ndevices = ["%s"]\n' "$T/w/flash.img"; } >"$T/w.toml"
ends "a flash device twice" 'flash.img is a cache device of pool .fast. already' "$cannot"
changed 's/^pool = "fast"/pool = "fst"/'
ends "a pool that is not there" 'there is no pool .fst
did you mean .fast' "$cannot"
ends "no file" 'none.toml: No such file
forebay config example' 'none.toml: No such file' "$T/none.toml"
printf '[\377\376' >"$T/w.toml"
ends "no text" 'w.toml: it is no text' 'it is no text'

say "an API that cannot be served: no pool is opened for it"
c >"$T/w.toml"
chmod 644 "$TOKEN"
ends "a token for everybody" "w/token: everybody on this machine may use it .mode 0644.: chmod o= it" 'w/token: everybody'
chmod 600 "$TOKEN"
mv "$TOKEN" "$T/kept"
ends "no token" "w/token: cannot be read" 'w/token: cannot be read'
echo short >"$TOKEN"
chmod 600 "$TOKEN"
ends "a short token" "a token is 32 to 1024 bytes
make one with: head" 'a token is'
cp "$T/kept" "$TOKEN"
changed "s|$T/w/admin.sock|$T/w/none/admin.sock|"
ends "no folder for the socket" "there is no folder $T/w/none: make it" 'there is no folder'
c >"$T/w.toml"
python3 -c "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', $PORT)); s.listen(); time.sleep(250)" &
OTHER=$!
on_exit "kill_jobs TERM $OTHER"
eventually 10 bash -c "echo >/dev/tcp/127.0.0.1/$PORT" 2>/dev/null || fail "nobody listens"
ends "a port that somebody has" "127.0.0.1:$PORT.*in use" 'in use'
kill "$OTHER"
wait "$OTHER" 2>/dev/null || true

say "what is missing is told, and the rest is served"
# serves WHAT WORDS ALARM: it serves, says the words, one a line, and has an alarm of the kind; the manager is told of it.
serves() {
    local word tries=$((READY_SECONDS * 20))
    : >"$T/notices"
    : >"$T/stderr"
    NOTIFY_SOCKET=$T/notify "$FOREBAY" serve --config "$T/w.toml" >"$T/stdout" 2>"$T/stderr" &
    DAEMON=$!
    until grep -q 'forebay: serving' "$T/stderr"; do
        kill -0 "$DAEMON" 2>/dev/null || fail "$1: the daemon ended"
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "$1: not ready after $READY_SECONDS s"
        sleep 0.05
    done
    while read -r word; do eventually 20 grep -Eiq -- "$word" "$T/stderr" || fail "$1: it does not say '$word'"; done <<<"$2"
    raised() {
        "$FOREBAY" alarms --json --admin "$(sed -n 's/^admin_socket = "\(.*\)"/\1/p' "$T/w.toml")" >"$T/alarms"
        grep -q "\"$1\"" "$T/alarms"
    }
    eventually 20 raised "$3" || fail "$1: no alarm $3: $(cat "$T/alarms")"
    eventually 20 eval "told | grep -q 'alarms: 1, .*$4'" || fail "$1: the service manager is told: $(told)"
    stop
    echo "  $1"
}
changed "s|w/db.img|w/gone.img|"
serves "a disk that is gone" "volume db: cannot open .*w/gone.img: No such file.*tried again" volume.failed gone.img
[ ! -e "$T/w/gone.img" ] || fail "it was made"
changed "/^devices/a encryption_key_file = \"$T/w/key\""
mv "$T/w/flash.img" "$T/flash.kept"
mv "$T/w/state" "$T/state.kept"
serves "no key" "pool fast: the key file .*w/key: cannot be read.*then: forebay pool open fast" pool.failed w/key
[ ! -e "$T/w/flash.img" ] || fail "a cache without its key was made"
rm -rf "$T/w/state"
mv "$T/state.kept" "$T/w/state"
c >"$T/w.toml"
serves "a flash device that is gone" "pool fast: .*flash.img is not there, but the cache .* is recorded
bring it back
tried again" pool.failed 'is not there'
[ ! -e "$T/w/flash.img" ] || fail "it was made"
mv "$T/flash.kept" "$T/w/flash.img"
changed -e "s|nbd+unix:[^\"]*|nbds+unix:///db?socket=$T/w/db.sock\&tls=lan|" -e "\$a [tls.lan]\ncert_file = \"$T/w/c.pem\"\nkey_file = \"$T/w/k.pem\""
serves "no certificate" "c.pem: cannot be read
volume db: cannot export db.*then: forebay volume attach db" volume.failed c.pem

say "beside a daemon that has the same"
c >"$T/first.toml"
NOTIFY_SOCKET='' "$FOREBAY" serve --config "$T/first.toml" >"$T/stdout" 2>"$T/first.err" &
DAEMON=$!
FIRST=$DAEMON
eventually "$READY_SECONDS" grep -q 'forebay: serving' "$T/first.err" || fail "the first daemon"
ends "the same configuration" "w/admin.sock is in use by a running server: stop it|127.0.0.1:$PORT.*in use" 'in use' "$T/first.toml"
printf '[daemon]\nadmin_socket = "%s"\nstate_dir = "%s"\n[pool.two]\ndevices = [{ path = "%s", size = "64MiB" }]\n' \
    "$T/w/admin.sock" "$T/w/two" "$T/w/two.img" >"$T/w.toml"
ends "the same socket of the API, and another pool" "w/admin.sock is in use by a running server: stop it" 'w/admin.sock is in use'
changed -e "/^admin_tcp/d" -e "s|w/admin.sock|w/second.sock|" -e "s|w/state|w/second|" -e "s|w/db.sock|w/db2.sock|"
serves "the same devices" "pool fast: .*flash.img is in use by another process: .*pid $FIRST.*stop that program" pool.failed "pid $FIRST"
rm -rf "$T/w/second"
changed -e "/^admin_tcp/d" -e "s|w/admin.sock|w/third.sock|" -e "s|w/state|w/third|" -e "s|w/flash.img|w/third.img|" -e "s|w/db.img|w/other.img|"
serves "the same socket of an export" "volume db: cannot export db: socket .*db.sock is in use by a running server: stop it.*then: forebay volume attach db" volume.failed db.sock
DAEMON=$FIRST
"$FOREBAY" volume show db --admin "$T/w/admin.sock" >"$T/show" && grep -q serving "$T/show" || fail "the first daemon was disturbed"
stop

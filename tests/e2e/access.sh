#!/usr/bin/env bash
# Who may do what: exports by user, group, address and name of the certificate; the admin API by level. What somebody may
# not use is not there for them; no secret is told.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/tls-lib.sh"
need openssl nbdinfo setpriv python3 curl
[ "$(id -u)" -eq 0 ] || skip "other users can be tried only as root"

authority "$PKI/ca"
certificate "$PKI/ca" server server DNS:localhost
certificate "$PKI/ca" client alice
certificate "$PKI/ca" client bob DNS:bob.example URI:spiffe://test/bob

head -c 32 /dev/urandom | base64 >"$T/token"
head -c 32 /dev/urandom | base64 >"$T/read-token"
chmod 600 "$T/token" "$T/read-token"
chmod 755 "$T"
PORT=$(free_port)
OPEN=$(free_port)
TCP=$(free_port)
MINE=4711
YOURS=4712
for disk in mine yours all; do truncate -s 16M "$T/$disk.img"; done

config_for() { # UID: the user of `mine`
    config <<END
admin_mode = "0666"
admin_operate = { uids = [$MINE] }
admin_read = { gids = [$YOURS] }
admin_tcp = { listen = "127.0.0.1:$TCP", token_file = "$T/token", read_token_file = "$T/read-token" }

[tls.lan]
cert_file = "$PKI/server/server-cert.pem"
key_file = "$PKI/server/server-key.pem"
client_ca_file = "$PKI/ca/ca-cert.pem"

[access.mine]
uids = [$1]

[access.yours]
gids = [$YOURS]

[access.alice]
clients = ["cn:alice"]

[access.bob]
clients = ["dns:BOB.example", "uri:spiffe://test/nobody"]
addresses = ["127.0.0.0/8"]

[access.here]
addresses = ["127.0.0.1"]

[access.elsewhere]
addresses = ["192.0.2.0/24"]

[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.mine]
pool = "fast"
backing = "file:$T/mine.img"
exports = ["nbd+unix:///mine?socket=$T/nbd.sock&access=mine", "nbds://127.0.0.1:$PORT/mine?tls=lan&access=alice"]

[volume.yours]
pool = "fast"
backing = "file:$T/yours.img"
exports = ["nbd+unix:///yours?socket=$T/nbd.sock&access=yours", "nbds://127.0.0.1:$PORT/yours?tls=lan&access=bob"]

[volume.all]
pool = "fast"
backing = "file:$T/all.img"
exports = ["nbd+unix:///all?socket=$T/nbd.sock", "nbd://127.0.0.1:$OPEN/all?access=here", "nbd://127.0.0.2:$OPEN/all?access=elsewhere"]
END
}
config_for $MINE
serve
chmod 666 "$T/nbd.sock"

# Programs may lie where other users cannot enter: the daemon's own, and Pythons of version managers.
install -m 755 "$FOREBAY" "$T/forebay"
FOREBAY=$T/forebay
mkdir -m 755 "$T/python"
install -m 644 "$E2E/nbd_client.py" "$T/python/"
AS_MINE=(setpriv --reuid "$MINE" --regid 65534 --clear-groups env PATH=/usr/bin:/bin python3)
"${AS_MINE[@]}" -c '' 2>/dev/null || skip "other users have no python3"

as() { # UID GROUPS COMMAND...
    local uid=$1 groups=$2
    shift 2
    setpriv --reuid "$uid" --regid 65534 --groups "$groups" "$@"
}
local_uri() { echo "nbd+unix:///$1?socket=$T/nbd.sock"; }
names() { jq -r '.exports[]["export-name"]' "$T/list" | sort | paste -sd,; }
sees() { # UID GROUPS NAMES
    as "$1" "$2" nbdinfo --list --json "$(local_uri '')" >"$T/list" || fail "--list as $1"
    [ "$(names)" = "$3" ] || fail "user $1 with groups $2 sees $(names), not $3"
}

say "by user and group: what is not for somebody is not there"
sees $MINE 65534 all,mine
sees $YOURS 65534 all
sees 4713 $YOURS,65534 all,yours
sees 4713 65534 all
as $MINE 65534 nbdinfo --size "$(local_uri mine)" >/dev/null || fail "the owner is refused"
as 4713 65534,$YOURS nbdinfo --size "$(local_uri yours)" >/dev/null || fail "a supplementary group is not seen"
for wrong in yours nosuch; do
    refused '1' "no export named" setpriv --reuid $MINE --regid 65534 --clear-groups nbdinfo --size "$(local_uri $wrong)"
    sed "s/$wrong/NAME/g; s/^[^:]*: //" "$T/refused.err" >"$T/words.$wrong"
done
assert_same "$T/words.yours" "$T/words.nosuch" "hidden and missing exports are told apart"

say "by certificate"
tls_uri() { echo "nbds://localhost:$PORT/$2?tls-certificates=$PKI/$1"; }
nbdinfo --size "$(tls_uri alice mine)" >/dev/null || fail "alice"
nbdinfo --size "$(tls_uri bob yours)" >/dev/null || fail "bob, by a DNS name"
refused '1' '' nbdinfo --size "$(tls_uri alice yours)"
refused '1' '' nbdinfo --size "$(tls_uri bob mine)"
nbdinfo --list --json "$(tls_uri bob '')" >"$T/list"
[ "$(names)" = yours ] || fail "bob sees $(names)"

say "by address"
nbdinfo --size "nbd://127.0.0.1:$OPEN/all" >/dev/null || fail "the address that is let in"
refused '1' '' nbdinfo --size "nbd://127.0.0.2:$OPEN/all"

say "a list that changes holds for those who are connected too"
"${AS_MINE[@]}" - "$T/python" "$T/nbd.sock" >"$T/holder" 2>&1 <<'END' &
import sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import nbd_client
client = nbd_client.Client(sys.argv[2], "mine")
other = nbd_client.Client(sys.argv[2], "all")
assert client.call(nbd_client.READ, 0, 512)[0] == 0
print("connected", flush=True)
deadline = time.monotonic() + 30
try:
    while time.monotonic() < deadline:
        client.call(nbd_client.READ, 0, 512)
        time.sleep(0.1)
except nbd_client.Disconnected:
    assert other.call(nbd_client.READ, 0, 512)[0] == 0, "the other export was cut off too"
    print("cut off", flush=True)
END
HOLDER=$!
eventually 20 grep -q connected "$T/holder" || { cat "$T/holder"; fail "the client that is let in"; }
config_for 4999
ask reload
wait "$HOLDER" || { cat "$T/holder"; fail "the client that was connected"; }
grep -q 'cut off' "$T/holder" || { cat "$T/holder"; fail "who is not let in any more goes on"; }
sees $MINE 65534 all

say "the admin API by level"
admin() { # UID GROUPS COMMAND...
    local uid=$1 groups=$2
    shift 2
    as "$uid" "$groups" "$FOREBAY" "$@" --admin "$ADMIN"
}
admin 4713 $YOURS status >/dev/null || fail "who may look is refused"
refused '1' "needs the level .operate., and you have .read.
ask the operator" setpriv --reuid 4713 --regid 65534 --groups $YOURS "$FOREBAY" set all mode=writethrough --admin "$ADMIN"
refused '1' 'you have .none.' setpriv --reuid 4713 --regid 65534 --clear-groups "$FOREBAY" status --admin "$ADMIN"
admin $MINE 65534 set all mode=writethrough >/dev/null || fail "who may operate is refused"
ask set all mode=writeback
status() { curl -s -o "$T/curl.out" -w '%{http_code}' -H "Authorization: Bearer $(cat "$1")" "${@:2}"; }
url=http://127.0.0.1:$TCP/v1
[ "$(status "$T/read-token" "$url/volumes")" = 200 ] || fail "the token for looking"
[ "$(status "$T/read-token" -X POST "$url/reload")" = 403 ] || fail "the token for looking changes things"
grep -q '"kind":"denied"' "$T/curl.out" || fail "no problem in the answer"
[ "$(status "$T/token" -X POST "$url/reload")" = 200 ] || fail "the token for operating"
[ "$(status /dev/null "$url/volumes")" = 401 ] || fail "no token at all"

say "refusals are events, the newest of each two seconds; no secret is told"
is_event() {
    "$FOREBAY" events --kind client --after oldest --admin "$ADMIN" >"$T/events"
    grep -q "is not let in to .*mine.* any more" "$T/events"
}
eventually 20 is_event || { cat "$T/events"; fail "no event"; }
"$FOREBAY" status --json --admin "$ADMIN" >"$T/status.json"
curl -s --unix-socket "$ADMIN" http://x/v1/stats http://x/v1/openapi.json http://x/v1/volumes >"$T/api.out"
no_secrets "$T/stderr" "$T/stdout" "$T/events" "$T/status.json" "$T/api.out" "$T/ask.out" "$T/refused.err"
stop

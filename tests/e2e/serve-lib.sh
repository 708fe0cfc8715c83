# shellcheck shell=bash
# For tests of `forebay serve`; sourced after lib.sh.
#
#   config <<END ... END   writes $T/forebay.toml, with a [daemon] section of its own
#   serve, unserve         start it and wait until it serves; stop it, it must end with 0
#   ask COMMAND...         a command of the operator, which must succeed
#   verify WHEN            every write that the writer was told of is there (`writer` of lib.sh)
#   note_replaced OLD NEW  the daemon believes that pool fast had the file OLD replaced by NEW, and that OLD is not erased yet;
#                          its state_dir is $T/state.d
#   cut_off FILE SIZE      cuts a file that the daemon uses, and makes the tmpfs around it too small to write it again

ADMIN=$T/admin.sock

config() {
    {
        printf '[daemon]\nadmin_socket = "%s"\nstate_dir = "%s"\n\n' "$ADMIN" "$T/state"
        cat
    } >"$T/forebay.toml"
}

serve() {
    : >"$T/stderr"
    "$FOREBAY" serve --config "$T/forebay.toml" >"$T/stdout" 2>>"$T/stderr" &
    DAEMON=$!
    local tries=$((READY_SECONDS * 20))
    until grep -q 'forebay: serving' "$T/stderr"; do
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon ended before it was ready"
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "not ready after $READY_SECONDS s"
        sleep 0.05
    done
}

unserve() { stop; }

ask() {
    timeout 120 "$FOREBAY" "$@" --admin "$ADMIN" >"$T/ask.out" 2>&1 || {
        cat "$T/ask.out"
        fail "forebay $*"
    }
}

cut_off() { # what is under way may be in the way for a moment, and a daemon that goes on writing for ever
    local code=0
    kill -STOP "$DAEMON"
    truncate -s 0 "$1" && mount -o "remount,size=$2" "$(dirname "$1")" 2>/dev/null || code=$?
    kill -CONT "$DAEMON"
    return $code
}

verify() { writer verify >"$T/verify.out" 2>&1 || { tail -n 5 "$T/verify.out"; fail "wrong data $1"; }; }

note_replaced() {
    python3 - "$T/state.d" "$1" "$2" <<'END'
import json, os, sys
state, old, new = sys.argv[1:]
uuid = next(name for name in os.listdir(f"{state}/caches") if name.endswith(".json"))[:-5].replace("-", "")
os.makedirs(f"{state}/replaced", exist_ok=True)
pair = {"cache_uuid": uuid, "old": old, "new": new, "took_over": True}
json.dump({"version": 1, "pairs": [pair]}, open(f"{state}/replaced/fast.json", "w"))
END
}

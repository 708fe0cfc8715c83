#!/usr/bin/env bash
# Schemathesis attacks the admin API as its own OpenAPI document describes it: no failure that is not documented,
# answers and media types as described, nonsense refused, nothing without the token. See schemathesis.toml.
#
#   FUZZ_SECONDS   time for it (80)
#   FAKE_DAEMON    the server under test; built if not given
. "$(dirname "$0")/lib.sh"

FUZZ_SECONDS=${FUZZ_SECONDS:-80}
SCHEMATHESIS=$ROOT/target/venv/bin/schemathesis
[ -x "$SCHEMATHESIS" ] || skip "schemathesis is not installed (scripts/setup installs it)"
need curl

if [ -z "${FAKE_DAEMON:-}" ]; then
    need cargo
    # As the unit tests build it, so that it is there after them: for one crate alone, or without the tests, the libraries have other
    # features, and all of them are built again.
    (cd "$ROOT" && cargo test --quiet --locked --workspace --no-run)
    FAKE_DAEMON=${CARGO_TARGET_DIR:-$ROOT/target}/debug/examples/fake-daemon
fi

(umask 077; head -c 32 /dev/urandom | base64 >"$T/token")
mkfifo "$T/stdin"
"$FAKE_DAEMON" "$T/admin.sock" "$T/token" <"$T/stdin" >"$T/ready" 2>>"$T/stderr" &
DAEMON=$!
exec 3>"$T/stdin" # it ends when this is closed
eventually 30 grep -q '^ready: ' "$T/ready" || fail "the server is not ready"
address=$(sed -n 's/^ready: //p' "$T/ready")
[ -n "$address" ] || fail "the server is not ready"
authorization="Authorization: Bearer $(cat "$T/token")"

cd "$T"
sed '/^\[parameters\]/,$d' "$E2E/schemathesis.toml" >"$T/made-up-names.toml"
for config in "$E2E/schemathesis.toml" "$T/made-up-names.toml"; do
    say "the fuzzer, for $((FUZZ_SECONDS / 2)) s, with $(basename "$config")"
    # One worker: Python 3.11 cannot parse in two threads at once ("AST constructor recursion depth mismatch").
    # Events never end, and recordings last, so the fuzzer would wait for ever; crates/forebay-daemon/src/events/tests has them.
    "$SCHEMATHESIS" --config-file "$config" run "http://$address/v1/openapi.json" \
        --header "$authorization" --exclude-path /v1/events --exclude-path '/v1/volumes/{volume}/trace' --max-time "$((FUZZ_SECONDS / 2))" --workers 1 \
        || fail "the fuzzer found something"
done

say "it still answers, and ends in an orderly way"
curl -fsS -H "$authorization" "http://$address/v1/daemon" | grep '"version"' >/dev/null || fail "no answer after the fuzzing"
if grep -q 'panicked at' "$T/stderr"; then fail "something panicked"; fi
exec 3>&-
wait "$DAEMON" || fail "the server failed at its end"
DAEMON=

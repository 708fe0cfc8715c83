#!/usr/bin/env bash
# Losses of power of the real daemon, recorded by dm-log-writes in a guest: what was promised is there after each. That the
# test would find it if it were not is seen with devices that lose what was flushed. Long: tests/power-cuts/run.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" -eq 0 ] || skip "the guest is made as root"
"$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"

cuts() { "$ROOT/tests/power-cuts/run" --set flush_period=3s "$@" 2>/dev/null; }

# In memory: the log of the guest is large, and read often.
recorded=$(mktemp -d /dev/shm/forebay-power-cuts.XXXXXX)
on_exit "rm -rf '$recorded'"

say "cuts of what a guest records"
cuts --keep "$recorded" --seconds "${SECONDS_OF_LOAD:-15}" --points "${POINTS:-40}" || fail "a promise was broken"
for liar in cache backing; do
    say "a $liar device that loses what was flushed is found"
    ! cuts --recorded "$recorded" --points 8 --liar "$liar" >"$T/liar" || fail "it was not found"
    grep -q '^again: tests/power-cuts/run' "$T/liar" || fail "no command repeats the cut: $(tail -n 3 "$T/liar")"
done

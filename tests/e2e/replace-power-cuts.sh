#!/usr/bin/env bash
# Losses of power while cache devices replace each other, recorded by dm-log-writes in a guest: the device that the configuration
# names is whole after each, and one that could take its place is too. That the test would find it if they were not is seen with
# a new device that loses what was flushed. Long: tests/power-cuts/run --replace.
# Runs in a guest.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" -eq 0 ] || skip "the guest is made as root"
"$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"

cuts() { "$ROOT/tests/power-cuts/run" --replace --set flush_period=3s "$@" 2>/dev/null; }

recorded=$(mktemp -d /dev/shm/forebay-power-cuts.XXXXXX)
on_exit "rm -rf '$recorded'"

say "cuts of what a guest records"
cuts --keep "$recorded" --seconds "${SECONDS_OF_LOAD:-10}" --points "${POINTS:-24}" || fail "a promise was broken"
say "a new device that loses what was flushed is found"
! cuts --recorded "$recorded" --points 12 --liar new >"$T/liar" || fail "it was not found"
grep -q '^again: tests/power-cuts/run.* --replace' "$T/liar" || fail "no command repeats the cut: $(tail -n 3 "$T/liar")"

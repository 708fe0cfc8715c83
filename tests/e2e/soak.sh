#!/usr/bin/env bash
# A minute of the soak (scripts/soak), with a seed of its own each day: everything at once, every byte judged.
. "$(dirname "$0")/lib.sh"
need python3

python3 "$ROOT/scripts/soak" --minutes "${MINUTES:-1}" --seed "${SEED:-$(date +%Y%m%d)}" --forebay "$FOREBAY" --folder "$T/soak" || {
    umount "$T"/soak/era-*/flash "$T"/soak/era-*/slow 2>/dev/null
    tail -n 20 "$T"/soak/era-*/daemon.log
    fail "see above; scripts/soak with this seed keeps its folder"
}

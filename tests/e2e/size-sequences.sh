#!/usr/bin/env bash
# Random sequences of growing and shrinking a pool, by size and by device, with files and block devices and sizes that are no multiple of
# anything, and a start between them, orderly or after kill -9: each start opens the pool on the devices that it had, and nothing that the
# daemon has written into its configuration is refused or changed by a reload. SEQUENCES=... FIRST=... for others.
. "$(dirname "$0")/lib.sh"
need python3 losetup

options=()
for bytes in 20971520 13000192; do
    truncate -s "$bytes" "$T/disk$bytes"
    device=$(losetup -f --show "$T/disk$bytes") || break # files alone, then
    on_exit "losetup -d $device"
    options+=(--block-device "$device")
done
python3 "$E2E/size_sequences.py" --forebay "$FOREBAY" --folder "$T" --seed "${FIRST:-203}" --sequences "${SEQUENCES:-4}" \
    --ready-seconds "$READY_SECONDS" "${options[@]}" || fail "a sequence"

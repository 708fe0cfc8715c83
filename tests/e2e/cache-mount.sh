#!/usr/bin/env bash
# `forebay cache` and `forebay uncache` (tests/guest/cache-steps): a cache is put before a mounted disk and taken away, refused, killed
# at each step, and undone where a step fails. Where the kernel has no ublk that is in a guest (tests/guest).
#
# `ALL=1 GUEST_SECONDS=900 tests/e2e/cache-mount.sh` is a command of its own: it kills `cache` at each of its lines before `uncache`, not
# at one of them, and has somebody use the mount in the middle.
# Runs in a guest.
. "$(dirname "$0")/root-lib.sh"

if [ ! -e /dev/ublk-control ]; then
    "$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
    code=0
    "$ROOT/tests/guest/run" --limit "${GUEST_SECONDS:-280}" --memory 2G "$0" FOREBAY="$FOREBAY" READY_SECONDS=60 ALL="${ALL:-}" || code=$?
    exit "$code"
fi

need dmsetup mkfs.ext4 setpriv blkid
new_system
in_root env ALL="${ALL:-}" bash "$ROOT/tests/guest/cache-steps"

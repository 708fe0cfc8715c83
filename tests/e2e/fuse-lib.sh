# shellcheck shell=bash
# For tests that mount volumes as files; sourced after lib.sh.
#
#   abort_fuse    for on_exit: whatever happens, nobody stays in a system call on a file that is not answered

abort_fuse() {
    local at
    mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections || true
    for at in $(awk -v t="$T/" 'index($5, t) == 1 && / - fuse.forebay / { split($3, d, ":"); print d[2] }' /proc/self/mountinfo); do
        echo 1 >"/sys/fs/fuse/connections/$at/abort" || true
    done
    if command -v losetup >/dev/null; then
        for at in $(losetup -n -O NAME,BACK-FILE | awk -v t="$T/" 'index($2, t) == 1 { print $1 }'); do losetup -d "$at"; done
    fi
    awk -v t="$T/" 'index($5, t) == 1 { print $5 }' /proc/self/mountinfo | tac | xargs -r -n1 umount -l
}

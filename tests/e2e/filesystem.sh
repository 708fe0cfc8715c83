#!/usr/bin/env bash
# A real file system on the volume, and kill -9 of the daemon while files are copied to it: the file system recovers
# by its journal, checks clean, and what was synced before is there to the last byte. Needs root, FUSE and loop devices.
. "$(dirname "$0")/lib.sh"
need nbdfuse losetup fusermount3
[ "$(id -u)" -eq 0 ] || skip "mounting needs root"
[ -c /dev/fuse ] || skip "no /dev/fuse: FUSE is not available here"
losetup --find >/dev/null 2>&1 || skip "no loop device is available here"

FS_MIB=600 # xfs wants at least 300 MiB
FUSE=$T/fuse
MOUNT=$T/mount
LOOP=
NBDFUSE=
mkdir "$FUSE" "$MOUNT"

attach() {
    nbdfuse "$FUSE/disk" "$URI" 2>>"$T/nbdfuse.err" &
    NBDFUSE=$!
    local tries=200
    until [ -e "$FUSE/disk" ]; do
        kill -0 "$NBDFUSE" 2>/dev/null || { cat "$T/nbdfuse.err"; skip "nbdfuse does not start: FUSE is not available here"; }
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "nbdfuse does not show the volume"
        sleep 0.05
    done
    LOOP=$(losetup --find --show --direct-io=on "$FUSE/disk" 2>"$T/losetup.err") ||
        LOOP=$(losetup --find --show "$FUSE/disk") || skip "the loop driver does not take a file on FUSE here"
}
detach() {
    # Not `mountpoint`, which takes a file system that was shut down for no mount point.
    while grep -q " $MOUNT " /proc/self/mounts; do
        umount "$MOUNT" || umount -l "$MOUNT" || break
    done
    if [ -n "$LOOP" ]; then
        losetup --detach "$LOOP" || true
        for _ in $(seq 100); do
            losetup "$LOOP" >/dev/null 2>&1 || break
            sleep 0.05
        done
    fi
    LOOP=
    if [ -n "$NBDFUSE" ]; then
        # It aborts by itself when the daemon is killed; the mount is left then.
        fusermount3 -u "$FUSE" 2>/dev/null || umount -l "$FUSE" 2>/dev/null || true
        kill -9 "$NBDFUSE" 2>/dev/null || true
        wait "$NBDFUSE" 2>/dev/null || true
    fi
    NBDFUSE=
}
on_exit detach

sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum); }

# Plain files of /usr/share/doc, as many as fit several times.
(cd /usr/share/doc && find . -type f -size -200k -print0 | sort -z) >"$T/all-docs"
head -z -n 3000 "$T/all-docs" >"$T/docs"
copy_docs() {
    mkdir -p "$1"
    (cd /usr/share/doc && xargs -0 cp --parents --target-directory="$1" <"$T/docs")
}

exercise() { # ext4|xfs
    local check
    case $1 in
        ext4) make=(mkfs.ext4 -q -F) check=(fsck.ext4 -fn) ;;
        xfs) make=(mkfs.xfs -q -f) check=(xfs_repair -n) ;;
    esac
    need "${make[0]}" "${check[0]}"
    say "$1: make, copy, sync"
    rm -rf "$BACKING" "$CACHE" "$STATE_DIRECTORY/caches"
    make_backing ${FS_MIB}M
    CACHE_SIZE=128MiB
    start
    attach
    "${make[@]}" "$LOOP"
    mount "$LOOP" "$MOUNT" || skip "mounting $1 is not possible here"
    copy_docs "$MOUNT/synced"
    sums "$MOUNT/synced" >"$T/sums"
    [ -s "$T/sums" ] || fail "no files were copied: this test would prove nothing"
    sync -f "$MOUNT"
    say "$1: $(wc -l <"$T/sums") files synced; copy more, and kill -9 in the middle"
    # Synced round after round, so that the kill meets writes on their way and not only the page cache.
    (for ((round = 0; ; round++)); do copy_docs "$MOUNT/more/$((round % 3))" && sync -f "$MOUNT"; done) \
        >/dev/null 2>"$T/copier.err" &
    local copier=$!
    sleep "$((1 + RANDOM % 2)).$((RANDOM % 10))"
    kill -0 "$copier" || { cat "$T/copier.err"; fail "$1: the copy ended before the kill"; }
    crash
    wait "$copier" || true
    detach

    say "$1: restart on the same cache, recover, check"
    start
    attach
    mount "$LOOP" "$MOUNT" || fail "$1: the file system does not mount after the crash"
    (cd "$MOUNT/synced" && sha256sum --quiet --check "$T/sums") || fail "$1: synced files are damaged"
    unmount "$LOOP" "$MOUNT"
    "${check[@]}" "$LOOP" >"$T/fsck.out" 2>&1 || { cat "$T/fsck.out"; fail "$1: the file system is not clean"; }
    detach
    stop
}

exercise ext4
exercise xfs

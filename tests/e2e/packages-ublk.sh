#!/usr/bin/env bash
# A package is upgraded while a file system on a block device (ublk:) is in use, as docs/operate/upgrade.md says: the new program takes
# over, and who writes and compares there sees no error. It is not removed while the device is served, nor while the device waits for
# a daemon that was stopped.
# Runs in a guest.
. "$(dirname "$0")/root-lib.sh"
need fio dpkg-deb

if [ -z "${DEBS:-}" ]; then
    for version in 0.1.1 0.1.2; do
        VERSION=$version SOURCE_DATE_EPOCH=1700000000 FOREBAY=$FOREBAY "$ROOT/scripts/package" --quick --to "$T/debs" deb >/dev/null ||
            fail "scripts/package"
    done
    export DEBS=$T/debs
fi
if [ ! -e /dev/ublk-control ]; then
    "$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
    code=0
    "$ROOT/tests/guest/run" --limit "${GUEST_SECONDS:-280}" --memory 2G "$0" FOREBAY="$FOREBAY" DEBS="$DEBS" READY_SECONDS=60 || code=$?
    exit "$code"
fi
need mkfs.ext4 setpriv

new_root_with_devices
on_exit 'in_root systemctl stop forebay'
on_exit 'umount -l "$R/srv/db"; in_root forebay ublk remove db --force'
# What else is installed takes long to read in a guest, and means nothing here.
mount -t tmpfs dpkg "$R/var/lib/dpkg"
mkdir "$R/var/lib/dpkg/"{info,updates}
touch "$R/var/lib/dpkg/"{status,available}
in_package() { in_root dpkg --force-unsafe-io --force-depends --no-triggers "$@" >"$T/dpkg.out" 2>&1; }
main_pid() { cat "$R/run/manager/main.pid"; }
no_errors() {
    if dmesg | grep -E 'I/O error|EXT4-fs error|Buffer I/O'; then fail "the kernel met I/O errors: $1"; fi
}
refuses_removal() { # WORDS
    if in_package --remove forebay; then fail "the package went: $1"; fi
    grep -q "$1" "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not say '$1'"; }
    [ -x "$R/usr/bin/forebay" ] || fail "the program is gone"
}

say "installed, and a file system on a block device"
in_package --install "$DEBS"/forebay_0.1.1-*.deb || { cat "$T/dpkg.out"; fail "dpkg --install"; }
in_root install -D -m 644 -t /etc/systemd/system/forebay.service.d /usr/share/forebay/ublk.conf
in_root systemctl enable --now forebay
in_root mkdir -p /srv/db /srv/forebay
in_root truncate -s 96M /srv/forebay/db.img
in_root forebay pool create fast --device /srv/forebay/flash.img:64MiB
in_root forebay volume attach db --backing file:/srv/forebay/db.img --export ublk:
in_root mkfs.ext4 -q /dev/forebay/db
mount "/dev/$(basename "$(readlink -f /dev/forebay/db)")" "$R/srv/db"

say "upgraded while it is used"
before=$(main_pid)
fio --name=load --directory="$R/srv/db" --size=24M --rw=randwrite --bs=4k --ioengine=io_uring --iodepth=16 --direct=1 --fsync=64 \
    --verify=crc32c --verify_fatal=1 --verify_backlog=256 --verify_state_save=0 --time_based --runtime=250 --output="$T/load.out" >/dev/null 2>&1 &
LOAD=$!
on_exit "kill_jobs KILL $LOAD"
sleep 5
in_package --install "$DEBS"/forebay_0.1.2-*.deb || { cat "$T/dpkg.out"; fail "dpkg --install"; }
grep 'has taken over from' "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not say that it took over"; }
[ "$(main_pid)" != "$before" ] || fail "the old process is the daemon"
[ "/proc/$(main_pid)/exe" -ef "$R/usr/bin/forebay" ] || fail "the daemon is not the program of the package"
sleep 3
# It ends by itself before that only if it saw an error.
kill -TERM "$LOAD" || { cat "$T/load.out"; fail "the load has ended"; }
wait "$LOAD" || true
if grep -E '^(verify|crc32c): |err= *[1-9]|error=' "$T/load.out"; then fail "the load met an error"; fi
grep -q 'rwts: total=[1-9]' "$T/load.out" || { cat "$T/load.out"; fail "the load has written nothing"; }
no_errors "an upgrade"

say "not removed while it is served, nor while it waits"
refuses_removal 'the daemon serves volumes'
in_root systemctl stop forebay
in_root forebay ublk list
refuses_removal 'block devices wait for the daemon'
in_root systemctl start forebay
cp "$R/usr/bin/dpkg" "$R/srv/db/after"
assert_same "$R/usr/bin/dpkg" "$R/srv/db/after" "after it was started again"
umount "$R/srv/db"
in_root forebay volume detach db
in_package --remove forebay || { cat "$T/dpkg.out"; fail "dpkg --remove"; }
[ ! -e "$R/usr/bin/forebay" ] || fail "removed, and there it is"
no_errors "the end"

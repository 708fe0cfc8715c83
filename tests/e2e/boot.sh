#!/usr/bin/env bash
# A machine boots as docs/operate/boot.md says: a guest with systemd as process 1 and what `make install` installs, with the files
# and lines of that page. File systems on a block device, over NBD and on a file are mounted, over a loss of power as well. A disk
# that comes late is mounted, one that never comes holds nothing up. At the end everything is unmounted before the daemon stops.
#
# GUEST_SECONDS: one start of the guest takes so long at most (200), for a machine that is busy otherwise.
# Runs in a guest.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need qemu-system-x86_64 mkfs.ext4 systemd-sysusers nbd-client strip
[ "$(id -u)" = 0 ] || skip "only root can make a layer over a root"
"$ROOT/tests/guest/setup" || skip "there is no guest (tests/guest/setup)"
[ -x /lib/systemd/systemd ] || skip "this machine has no systemd"

GUEST_SECONDS=${GUEST_SECONDS:-200}

# --- the machine: a layer over this one's root
U=$T/layer/upper
own() { # FOLDER...: nothing of this machine is seen in it
    mkdir -p "${@/#/$U/}"
    python3 -c 'import os, sys; [os.setxattr(path, "trusted.overlay.opaque", b"y") for path in sys.argv[1:]]' "${@/#/$U/}"
}
mkdir -p "$T/layer/work" "$T/out"
own etc/systemd/system etc/forebay etc/modprobe.d var/lib/forebay var/lib/systemd var/log var/tmp tmp srv out
chmod 755 "$T/layer" "$U" "$U"/{etc,etc/systemd,etc/systemd/system,var,var/lib,srv}
chmod 1777 "$U/tmp" "$U/var/tmp"
strip -o "$T/forebay" "$FOREBAY"
FOREBAY=$T/forebay DESTDIR=$U PREFIX=/usr "$ROOT/scripts/install" >/dev/null
cp -a /etc/{passwd,group,shadow,gshadow} "$U/etc/" # systemd-sysusers adds to them
systemd-sysusers --root="$U" "$U/usr/lib/sysusers.d/forebay.conf"
mkdir -p "$U/etc/forebay" "$U/var/lib/forebay"
# A file of containers would make systemd take the guest for one.
[ ! -e /.dockerenv ] || mknod "$U/.dockerenv" c 0 0
printf '%032x\n' 55 >"$U/etc/machine-id"
printf 'guest\n' >"$U/etc/hostname"
touch "$U/etc/.updated" "$U/var/.updated"
S=$U/etc/systemd/system
ln -s /lib/systemd/system/multi-user.target "$S/default.target"
# What takes time and means nothing here.
for unit in getty.target serial-getty@ttyS0.service systemd-logind.service dbus.service dbus.socket apparmor.service \
    systemd-journal-flush.service systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-random-seed.service \
    systemd-pstore.service systemd-user-sessions.service systemd-ask-password-wall.path dev-hugepages.mount dev-mqueue.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount proc-sys-fs-binfmt_misc.automount e2scrub_reap.service; do
    ln -s /dev/null "$S/$unit"
done
wants() { mkdir -p "$S/multi-user.target.wants" && ln -s "$1" "$S/multi-user.target.wants/"; }
wants /lib/systemd/system/remote-fs.target
wants /usr/lib/systemd/system/forebay.service
wants ../steps.service
cat >"$S/steps.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=exec
ExecStart=/bin/bash -c 'exec /out/boot-steps $(cat /out/steps)'
END
install -m 755 "$ROOT/tests/guest/boot-steps" "$T/out/"

say "files and lines of the page"
: >"$U/etc/fstab"
: >"$U/etc/nbdtab"
# of_page SECTION VOLUME: what a section of the page writes, for another volume than db.
of_page() {
    sed -n "/^## $1\$/,/^## /p" "$ROOT/docs/operate/boot.md" | sed -E "s/\bdb\b/$2/g" >"$T/section"
    awk -v root="$U" '
        /^```ini/ { getline; sub(/^# /, ""); file = root $0; sub(/\/[^\/]*$/, ""); system("mkdir -p " root $0); next }
        /^```/ { file = "" }
        file { print > file }' "$T/section"
    sed -n -E "s,^# echo '(.*)' >>(/.*)\$,\2 \1,p" "$T/section" | while read -r file line; do echo "$line" >>"$U$file"; done
    mkdir -p "$U/srv/$2" "$U/srv/forebay"
}
of_page 'A block device' late
of_page 'A block device' gone
of_page 'A block device' db
of_page NBD mail
of_page 'A FUSE file and a loop device' file
# A name with odd characters; what is missing is given up sooner, and this guest may be slow.
sed -i -e 's,/dev/forebay/db,/dev/forebay/db.1-a,' -e 's,forebay-db.device,forebay-db.1\\x2da.device,' -e '/gone/!s/timeout=60s/timeout=600s/' -e '/gone/s/timeout=60s/timeout=20s/' "$U/etc/fstab"
[ "$(wc -l <"$U/etc/fstab") $(wc -l <"$U/etc/nbdtab")" = "5 1" ] || fail "the page has other lines: $(cat "$U/etc/fstab" "$U/etc/nbdtab")"

disk() { echo "/dev/disk/by-id/virtio-$1"; }
{
    for cache in 0 1; do printf '[pool.%s]\ndevices = [{ path = "%s" }]\n' "$([ $cache = 0 ] && echo fast || echo other)" "$(disk flash$cache)"; done
    while read -r volume pool export; do
        printf '[volume.%s]\npool = "%s"\nbacking = "%s"\nexports = ["%s"]\n' "$volume" "$pool" "$(disk "$volume")" "$export"
    done <<END
db fast ublk:db.1-a
mail fast nbd+unix:///mail?socket=/run/forebay/mail.sock
file fast fuse:/srv/forebay/file/disk
late fast ublk:
gone other ublk:
END
} >"$U/etc/forebay/forebay.toml"
chown "$(awk -F: '$1 == "forebay" { print $3 ":" $4 }' "$U/etc/passwd")" "$U/etc/forebay/forebay.toml" # as a package does
mkfs() { mkfs.ext4 -q -F "$@" >/dev/null; }
for cache in 0 1; do printf '[pool.pool%s]\ndevices = [{ path = "%s/flash%s.img", size = "64MiB" }]\n' $cache "$T" $cache; done | config
serve # makes the caches
unserve
for name in db mail file late gone extra; do truncate -s 24M "$T/$name.img" && mkfs "$T/$name.img"; done
random_file "$T/out/kept" 1
truncate -s 1G "$T/system.img"
mkfs -d "$T/layer" "$T/system.img"

# boot STEPS DISK...: a guest with these disks, in the background.
boot() {
    local disks=() name
    echo "$1" >"$T/out/steps"
    for name in "${@:2}"; do disks+=(--disk "$name" "$T/$name.img"); done
    "$ROOT/tests/guest/run" --system "$T/system.img" "${disks[@]}" --limit "$GUEST_SECONDS" --out "$T/out" >"$T/guest.out" 2>&1 &
    GUEST=$!
}
on_exit 'kill -9 $(cat "$T/out/pid")'
console() { sed 's/\x1b\[[0-9;]*[mK]//g' "$T/out/console"; }
give_up() {
    console | tail -n 40
    cat "$T/out/log-$1" 2>/dev/null || true
    fail "$2"
}
asked() { # FILE STEPS: the guest asks for something
    there() { [ -e "$T/out/$1" ] || [ -e "$T/out/failed" ] || ! kill -0 "$GUEST" 2>/dev/null; }
    eventually "$GUEST_SECONDS" there "$1" || give_up "$2" "the guest does not get there"
    [ -e "$T/out/$1" ] || give_up "$2" "$(cat "$T/out/failed" 2>/dev/null || echo "the guest has ended")"
}

say "the first start: everything is mounted"
boot first flash0 flash1 db mail file late gone extra
asked cut first
sleep 1
kill -9 "$(cat "$T/out/pid")"
wait "$GUEST" || true

say "after a loss of power: a cache is gone, a disk is late, and the others have other names than before"
boot second extra file mail db flash0 gone
asked plug second
python3 - "$T/out/monitor" "$T/late.img" <<'END'
import json, socket, sys
with socket.socket(socket.AF_UNIX) as qmp:
    qmp.connect(sys.argv[1])
    lines = qmp.makefile("r")
    def ask(command, **arguments):
        qmp.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in lines:
            answer = json.loads(line)
            assert "error" not in answer, answer
            if "return" in answer:
                return
    ask("qmp_capabilities")
    ask("blockdev-add", driver="raw", **{"node-name": "late"}, file={"driver": "file", "filename": sys.argv[2]})
    ask("device_add", driver="virtio-blk-pci", bus="late", drive="late", serial="late")
END
code=0
wait "$GUEST" || code=$?
[ ! -e "$T/out/failed" ] || give_up second "$(cat "$T/out/failed")"
[ "$code" = 0 ] || give_up second "the guest ended with $code"

say "its end: file systems first, then the daemon, and nothing is forced"
console >"$T/console"
line_of() { grep -n -m1 -F "$1" "$T/console" | cut -d: -f1 | grep . || give_up second "the console has no '$1'"; }
stopping=$(line_of 'Stopping forebay.service')
for volume in db mail file late; do
    [ "$(line_of "Unmounted srv-$volume.mount")" -lt "$stopping" ] || give_up second "/srv/$volume was there when the daemon stopped"
done
[ "$stopping" -lt "$(line_of 'Stopped forebay.service')" ] || give_up second "the daemon did not stop"
if sed -n "$(line_of 'Unmounting srv-db.mount'),\$p" "$T/console" | grep -E '\[FAILED|Failed unmounting|[Tt]imed out|with signal|with result|users wait'; then
    give_up second "the end was not orderly"
fi
"$FOREBAY" check "$T/flash0.img" >"$T/checked" 2>&1 || { cat "$T/checked"; fail "the cache has faults"; }
exit 0

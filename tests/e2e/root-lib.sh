# shellcheck shell=bash
# A root to install into: that of this machine under a layer that is thrown away, in a mount namespace of its own. Nothing of the
# machine is changed, and nothing stays mounted, however the test ends. Sourced first; it sources lib.sh.
#
#   new_root            makes $R; $T and the checkout are in it at the same places
#   in_root COMMAND...  runs a command there, as root
#   new_root_with_devices   the same with the devices of this machine
#   new_system          that, and Forebay installed
#
# /dev has few nodes, /run is empty but for what says that systemd runs, and `systemctl` is a stand-in for it, which notes in
# /run/systemctl.log what it is asked for.

if [ "$(id -u)" -ne 0 ]; then
    echo "skipped: only root can make another root"
    exit 77
fi
if [ -z "${OWN_MOUNTS:-}" ]; then
    OWN_MOUNTS=1 exec unshare --mount --propagation private -- "$0" "$@"
fi
# What other tests have mounted would stay mounted in here, and so be in use, after they have unmounted it.
awk '$2 ~ /\/forebay-e2e\.[^\/]*\// { print $2 }' /proc/self/mounts | tac | xargs -r -n1 umount -l 2>/dev/null || true
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

R=$T/root

new_root() {
    local node
    mkdir -p "$T/layer" "$R"
    # No layer may lie in another one: memory is in none.
    mount -t tmpfs -o size=4G layer "$T/layer"
    mkdir "$T/layer/upper" "$T/layer/work"
    mount -t overlay -o "lowerdir=/,upperdir=$T/layer/upper,workdir=$T/layer/work" root "$R" 2>"$T/mount.err" ||
        skip "no layer can be put over this root: $(cat "$T/mount.err")"
    on_exit "umount -R -l '$R' '$T/layer'"
    # What other tests, or an administrator, have left on this machine, and perhaps write just now.
    eventually 10 rm -rf "$R/var/lib/forebay" "$R/etc/forebay"
    mount --bind /proc "$R/proc"
    mount --rbind /sys "$R/sys"
    mount -t tmpfs run "$R/run"
    mount -t tmpfs dev "$R/dev"
    for node in null zero full random urandom tty fuse loop-control; do
        [ ! -e "/dev/$node" ] || cp -a "/dev/$node" "$R/dev/"
    done
    ln -s /proc/self/fd "$R/dev/fd"
    mkdir -p "$R/dev/shm" "$R/run/systemd/system" "$R/run/lock" "$R$ROOT" "$R$T"
    mount --bind "$ROOT" "$R$ROOT"
    mount --bind "$T" "$R$T"
    rm -f "$R/usr/bin/systemctl"
    install -m 755 "$E2E/systemctl-stand-in" "$R/usr/bin/systemctl"
    install -m 644 "$E2E/service_manager.py" "$R/run/"
}

# In front of a command in the background: its process is then the job.
IN_ROOT=(chroot "$R" env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)
in_root() { "${IN_ROOT[@]}" "$@"; }

# Devices that are made while it is used are seen there, those of ublk too.
new_root_with_devices() {
    local number
    new_root
    mount --rbind /dev "$R/dev"
    ln -sfn /proc/self/fd /dev/fd
    for number in 0:stdin 1:stdout 2:stderr; do ln -sfn "/proc/self/fd/${number%:*}" "/dev/${number#*:}"; done
    mkdir -p "$R/run/udev"
}

new_system() {
    new_root_with_devices
    FOREBAY=$FOREBAY DESTDIR=$R PREFIX=/usr "$ROOT/scripts/install" >/dev/null
    in_root systemd-sysusers forebay.conf
    in_root systemd-tmpfiles --create forebay.conf
    in_root chown forebay: /etc/forebay/forebay.toml
}

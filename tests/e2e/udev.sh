#!/usr/bin/env bash
# The rule of udev: `lsblk -f` shows each device of a cache as one, with the UUID of the cache: plain, encrypted, mirrored, a
# further device, and damaged. Devices that are no caches are shown as they were. In a root of its own, with loop devices.
. "$(dirname "$0")/root-lib.sh"
. "$E2E/serve-lib.sh"
need udevadm lsblk losetup mkfs.ext4 dd
new_root
DESTDIR=$R PREFIX=/usr "$ROOT/scripts/install" >"$T/install.out" || { cat "$T/install.out"; fail "scripts/install"; }

(umask 077 && head -c 64 /dev/urandom >"$T/key")
config <<END
[pool.plain]
devices = [{ path = "$T/plain", size = "64MiB" }, { path = "$T/further", size = "64MiB" }]

[pool.secret]
devices = [{ path = "$T/secret", size = "64MiB" }]
encryption_key_file = "$T/key"

[pool.safe]
devices = [{ path = "$T/left", size = "64MiB" }, { path = "$T/right", size = "64MiB" }]
mirror = "on"
END
serve
uuid_of() { "$FOREBAY" inspect --udev "$1" | sed -n 's/^ID_FS_UUID=//p'; }
PLAIN=$(uuid_of "$T/plain") SECRET=$(uuid_of "$T/secret") SAFE=$(uuid_of "$T/left")
[ -n "$PLAIN" ] && [ -n "$SECRET" ] && [ -n "$SAFE" ] || fail "a cache that a daemon has open is not recognised"
unserve

# shown FILE: type and UUID that lsblk shows of a device with this content, after udev has looked at it.
shown() {
    local device
    device=$(losetup --find --show "$1") || skip "there are no loop devices"
    cp -a "$device" "$R/dev/"
    in_root udevadm test "/sys/class/block/${device#/dev/}" >"$T/udev.out" 2>&1 || true
    in_root lsblk --noheadings --output FSTYPE,UUID "$device" | tr -s ' ' | sed 's/^ //; s/ $//'
    losetup --detach "$device"
    rm -f "$R/dev/${device#/dev/}" "$R"/run/udev/data/b7:*
}
is() { # FILE TYPE-AND-UUID
    local found
    found=$(shown "$T/$1")
    [ "$found" = "$2" ] || { grep -n -i 'forebay' "$T/udev.out"; fail "$1: lsblk shows '$found' instead of '$2'"; }
}

say "every device of a cache, by its UUID"
is plain "forebay_cache $PLAIN"
is further "forebay_cache $PLAIN"
is secret "forebay_cache $SECRET"
is left "forebay_cache $SAFE"
is right "forebay_cache $SAFE"

say "also if one copy of its superblock is damaged; and without a UUID if both are"
spoil() { printf 'spoilt' | dd of="$T/$1" bs=1 seek="$2" conv=notrunc status=none; }
cp "$T/plain" "$T/damaged"
spoil damaged 20
is damaged "forebay_cache $PLAIN"
spoil damaged $((65536 + 30))
is damaged forebay_cache

say "what is no cache stays what it is, also where a copy of a superblock survives"
truncate -s 64M "$T/blank"
is blank ""
truncate -s 512 "$T/short"
is short ""
mkfs.ext4 -q -F -U 11111111-2222-3333-4444-555555555555 "$T/plain"
dd if="$T/left" of="$T/plain" bs=4096 count=1 skip=16 seek=16 conv=notrunc status=none
is plain "ext4 11111111-2222-3333-4444-555555555555"

#!/usr/bin/env bash
# qemu-img: convert an image onto the volume and back, sparse parts included, and compare.
. "$(dirname "$0")/lib.sh"
need qemu-img

make_backing 128M
truncate -s 128M "$T/image.raw"
random_file "$T/part" 16
dd if="$T/part" of="$T/image.raw" bs=1M seek=3 conv=notrunc status=none
dd if="$T/part" of="$T/image.raw" bs=512 seek=150001 conv=notrunc status=none
qemu-img convert -f raw -O qcow2 "$T/image.raw" "$T/image.qcow2"

start
qemu-img convert -n -f qcow2 -O raw "$T/image.qcow2" "$URI"
qemu-img compare -f raw -F raw "$T/image.raw" "$URI"
qemu-img convert -f raw -O qcow2 "$URI" "$T/back.qcow2"
qemu-img compare -f raw -F qcow2 "$T/image.raw" "$T/back.qcow2"
stop
start
qemu-img compare -f raw -F raw "$T/image.raw" "$URI"
stop

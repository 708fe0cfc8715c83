#!/usr/bin/env bash
# QEMU boots from a volume over vhost-user. The guest writes, reads back and compares sector after sector; meanwhile the daemon is
# killed, stopped and started again, and the guest sees nothing of it. No guest kernel: the boot sector is the program.
. "$(dirname "$0")/lib.sh"
need qemu-system-x86_64 as ld nbdcopy python3
qemu-system-x86_64 -device help 2>/dev/null | grep vhost-user-blk-pci >/dev/null || skip "this QEMU has no vhost-user-blk"

SECTORS=${SECTORS:-600}
KILLS=${KILLS:-3}
VHOST=$T/vol.sock

as --32 --defsym SECTORS="$SECTORS" -o "$T/guest.o" "$E2E/vhost-user-qemu.s"
ld -m elf_i386 -e start -Ttext 0x7c00 --oformat binary -o "$T/guest.bin" "$T/guest.o"
truncate -s 64M "$BACKING"
dd if="$T/guest.bin" of="$BACKING" conv=notrunc status=none

start --export "vhost-user:$VHOST"
: >"$T/serial"
qemu-system-x86_64 -accel tcg -display none -no-reboot -nodefaults -m 64M \
    -object memory-backend-memfd,id=mem,size=64M,share=on -machine pc,memory-backend=mem \
    -chardev "socket,id=vol,path=$VHOST,reconnect=1" -device vhost-user-blk-pci,chardev=vol,num-queues=2,bootindex=0 \
    -device isa-debug-exit,iobase=0xf4 -serial "file:$T/serial" >"$T/qemu.out" 2>&1 &
QEMU=$!
on_exit 'kill_jobs KILL $QEMU'

done_so_far() { tr -cd '.EX!' <"$T/serial" | wc -c; }
has_done() { kill -0 "$QEMU" 2>/dev/null || return 0; [ "$(done_so_far)" -ge "$1" ]; }

for ((kill = 1; kill <= KILLS; kill++)); do
    eventually 120 has_done $((SECTORS * kill / (KILLS + 2))) || fail "the guest does not go on: $(done_so_far) sectors"
    if ((kill % 2)); then crash; else stop; fi
    start --export "vhost-user:$VHOST"
done
say "killed or stopped $KILLS times, the last time at $(done_so_far) of $SECTORS sectors"
eventually 180 has_done $((SECTORS + 1)) || fail "the guest does not come to its end: $(done_so_far) sectors"
said=$(tr -cd '.EX!' <"$T/serial")
[ "$said" = "$(printf '.%.0s' $(seq "$SECTORS"))!" ] || fail "the guest has seen errors: $said; $(cat "$T/qemu.out")"

nbdcopy "$URI" "$T/copy"
python3 - "$T/copy" "$SECTORS" <<'END'
import sys

with open(sys.argv[1], "rb") as volume:
    volume.seek(100 * 512)
    for number in range(int(sys.argv[2])):
        if volume.read(512) != number.to_bytes(2, "little") * 256:
            sys.exit(f"FAILED: sector {number} is not what the guest has written")
END
stop
say "$SECTORS sectors are what the guest has written"

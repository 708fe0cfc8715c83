#!/usr/bin/env bash
# Patterns at aligned and unaligned places, zeroes and discards, each read back with verification, also after a restart.
. "$(dirname "$0")/lib.sh"
need qemu-io

make_backing 64M

io() {
    local args=() command
    for command in "$@"; do args+=(-c "$command"); done
    qemu-io -f raw "${args[@]}" "$URI" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "qemu-io: $*"; }
    if grep -Eiq 'failed|error' "$T/qemu-io.out"; then
        cat "$T/qemu-io.out"
        fail "qemu-io: $*"
    fi
}

start
say "aligned"
io 'write -P 0x11 0 1M' 'read -P 0x11 0 1M' 'write -P 0x22 4k 8k' 'read -P 0x11 0 4k' 'read -P 0x22 4k 8k' \
    'read -P 0x11 12k 1012k' 'read -P 0 1M 1M'
say "sectors and single bytes"
io 'write -P 0x33 2560 512' 'read -P 0x11 2048 512' 'read -P 0x33 2560 512' 'read -P 0x11 3072 1024' \
    'write -P 0x44 5001 3' 'read -P 0x22 4096 905' 'read -P 0x44 5001 3' 'read -P 0x22 5004 1000'
say "across block and extent borders"
io 'write -P 0x55 2097151 70001' 'read -P 0x55 2097151 70001' 'read -P 0 2000000 97151' 'read -P 0 2167152 1000'
say "FUA and flush"
io 'write -f -P 0x66 3M 64k' 'flush' 'read -P 0x66 3M 64k'
say "zeroes, small and large, with and without unmapping"
io 'write -P 0x77 8M 8M' 'write -z 8M 4k' 'write -z 8394240 512' 'write -z -u 9M 4M' 'read -P 0 8M 4k' \
    'read -P 0x77 8392704 1536' 'read -P 0 8394240 512' 'read -P 0x77 8394752 512k' 'read -P 0 9M 4M' \
    'read -P 0x77 13M 3M'
say "discard, and writing to what was discarded"
io 'discard 14M 1M' 'read -P 0 14M 1M' 'write -P 0x88 14M 4k' 'read -P 0x88 14M 4k' 'read -P 0 14684160 4k'
io 'aio_write -P 0x99 20M 1M' 'aio_write -P 0xaa 21M 1M' 'aio_flush' 'read -P 0x99 20M 1M' 'read -P 0xaa 21M 1M'
stop

say "everything is still there after a restart"
start
io 'read -P 0x11 0 2560' 'read -P 0x33 2560 512' 'read -P 0x44 5001 3' 'read -P 0x55 2097151 70001' \
    'read -P 0x66 3M 64k' 'read -P 0 8M 4k' 'read -P 0 9M 4M' 'read -P 0x77 13M 1M' 'read -P 0x88 14M 4k' \
    'read -P 0x99 20M 1M' 'read -P 0xaa 21M 1M'
stop

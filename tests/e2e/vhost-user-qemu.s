# A guest that is its own boot sector: it writes sectors, reads them back and compares them, and says so on the serial line.
# The firmware (SeaBIOS) has the driver. "." is a sector that is right, "E" an error of the disk, "X" other data than was
# written, "!" the end.
.code16
.globl start
.set FIRST, 100
.set BUFFER, 0x8000

start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x7c00, %sp
    sti
    mov %dl, drive
next:
    mov count, %ax          # every sector is full of its number
    mov $BUFFER, %di
    mov $256, %cx
    rep stosw
    mov $0x4300, %ax        # write
    call disk
    mov $BUFFER, %di
    xor %ax, %ax
    mov $256, %cx
    rep stosw
    mov $0x4200, %ax        # read
    call disk
    mov count, %ax
    mov $BUFFER, %di
    mov $256, %cx
    repe scasw
    mov $'.', %al
    je say_it
    mov $'X', %al
say_it:
    call put
    incw count
    cmpw $SECTORS, count
    jb next
    mov $'!', %al
    call put
stop:
    mov $0xf4, %dx          # isa-debug-exit
    out %al, %dx
    hlt
    jmp stop

disk:
    mov count, %bx
    add $FIRST, %bx
    mov %bx, lba
    mov drive, %dl
    mov $packet, %si
    int $0x13
    jnc done
    mov $'E', %al
    call put
done:
    ret

put:
    mov $0x3f8, %dx
    out %al, %dx
    ret

drive: .byte 0
count: .word 0
packet:
    .byte 16, 0
    .word 1                 # sectors
    .word BUFFER, 0
lba:
    .word 0, 0, 0, 0

.org 510
.word 0xaa55

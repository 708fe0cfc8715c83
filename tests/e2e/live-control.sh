#!/usr/bin/env bash
# Everything an operator can change, changed while fio writes and verifies: modes, orders, policies, limits, rules,
# sizes, devices, and a second volume that comes and goes. No I/O error, no wrong data.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need_fio
need qemu-io nbdinfo

truncate -s 192M "$T/db.img" "$T/vm.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "96MiB" }]

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
END
serve

DB="nbd+unix:///db?socket=$T/nbd.sock"
say "load: fio writes at random, verifies, and reads what it wrote, until everything was changed"
load_until_enough() {
    local rounds=0
    until [ -e "$T/enough" ]; do
        rounds=$((rounds + 1))
        verifies load --ioengine=nbd --uri="$DB" --iodepth=16 --rw=randrw --rwmixread=40 --bsrange=512-64k --blockalign=512 --size=96M --io_size=48M \
            --verify_backlog=256 --do_verify=1 --randseed=$rounds --rate_iops=1500 || return 1
    done
    echo "  $rounds rounds"
}
load_until_enough &
LOAD=$!
on_exit "kill_jobs TERM $LOAD"
sleep 2

round() {
    for mode in writethrough writearound writeonly passthrough writeback; do
        ask set db mode=$mode
        sleep 0.3
    done
    ask set db mode=writethrough --drain
    ask set db mode=writeback
    for order in fifo lru ordered elevator; do
        ask set db destage_order=$order
        sleep 0.3
    done
    for policy in fifo lru s3fifo; do
        ask set --pool fast reclaim_policy=$policy survivors_max_pct=50
        sleep 0.2
    done
    for admission in second-access never always; do ask set db admission=$admission; done
    ask set db flush_period=10s idle_delay=off dirty_low_pct=0 dirty_high_pct=30
    ask set db max_destage_iops=2000 max_destage_bandwidth=50MiB latency_target=5ms destage_depth_max=4
    ask set db skip_seq_thresh_kb=256 min_share_pct=10 max_share_pct=90 priority=high
    ask rules add db bypass direction=write size=..4KiB name=small
    ask rules add db pin lba=0..1MiB name=front
    ask rules add db write-through exe=nobody-has-this-name name=none
    sleep 0.3
    for rule in small front none; do ask rules delete db $rule; done
    for key in flush_period idle_delay dirty_low_pct dirty_high_pct max_destage_iops max_destage_bandwidth \
        latency_target destage_depth_max destage_gap_kb skip_seq_thresh_kb min_share_pct max_share_pct priority; do
        ask set db $key=
    done
}

say "modes, orders, policies, limits, rules"
round
ask set --pool fast reclaim_policy= survivors_max_pct=

say "a second volume comes, is used, and goes: drained, kept and back, discarded"
VM="nbd+unix:///vm?socket=$T/nbd.sock"
for how in "" --keep ""; do
    ask volume attach vm --pool fast --backing "file:$T/vm.img" --export "$VM" --set idle_delay=off
    qemu-io -f raw -c 'write -P 7 1M 2M' -c 'flush' -c 'read -P 7 1M 2M' "$VM" >"$T/qemu.out" || fail "vm: $(cat "$T/qemu.out")"
    # shellcheck disable=SC2086 # an option or nothing
    ask volume detach vm $how
    if [ -z "$how" ]; then
        qemu-io -f raw -c 'read -P 7 1M 2M' "$T/vm.img" >"$T/qemu.out" || fail "the image alone: $(cat "$T/qemu.out")"
    fi
done

say "the pool grows by its file and by a device, and shrinks again; the volume grows and shrinks"
ask pool grow fast --size 128MiB
ask pool grow fast --device "$T/more.img:64MiB"
ask pool shrink fast --device "$T/more.img"
ask pool shrink fast --size 96MiB
truncate -s 224M "$T/db.img"
ask volume resize db max
ask volume resize db 192MiB --force # fio is connected
say "a flush while all this is written"
ask flush db

touch "$T/enough"
wait "$LOAD" || { cat "$T/fio-load.out"; fail "fio met an error, or found wrong data"; }

say "what is asked twice, or makes no sense, is refused and changes nothing"
before=$(sha256sum "$T/forebay.toml")
refused 1 'in use by db' "$FOREBAY" pool remove fast --admin "$ADMIN"
refused 1 'no volume "vm"' "$FOREBAY" volume detach vm --admin "$ADMIN"
refused '1|2' 'dirty_hihg_pct' "$FOREBAY" set db dirty_hihg_pct=3 --admin "$ADMIN"
refused '1|2' 'dirty_low_pct' "$FOREBAY" set db dirty_low_pct=80 --admin "$ADMIN"
refused '1|2' 'mode' "$FOREBAY" set db mode=writesideways --admin "$ADMIN"
refused '1|2' '' "$FOREBAY" rules add db bypass lba=5GiB..6GiB --admin "$ADMIN"
refused '1|2' '' "$FOREBAY" volume resize db 3 --admin "$ADMIN"
refused '1|2' '' "$FOREBAY" volume attach other --pool nowhere --backing "file:$T/vm.img" --admin "$ADMIN"
[ "$before" = "$(sha256sum "$T/forebay.toml")" ] || fail "a refused change reached the configuration file"

say "what was changed is still so after a restart"
ask set db dirty_high_pct=55
unserve
grep -q 'dirty_high_pct = 55' "$T/forebay.toml" || fail "the change did not reach the file"
serve
ask get db dirty_high_pct
grep -qw 55 "$T/ask.out" || fail "the change is lost: $(cat "$T/ask.out")"
say "drained and detached, the image stands alone"
ask volume detach db
unserve

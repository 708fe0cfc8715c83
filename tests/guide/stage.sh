# shellcheck shell=bash
# What happens on the stage of the guide by itself: sourced for each direction of a page (execute.py).
#
#   new_machine      nothing is cached: the service is off, /dev/sdb has a file system with data, mounted at /srv/db, and
#                    /dev/nvme0n1 and /dev/nvme1n1 are empty
#   attached         the same with a cache (attach-disk.md); it is left as it is if the page before has left it so
#   users            somebody writes and reads files in /srv/db, and compares them, in the background, for two minutes at most
#   users_done       ends that; there must have been no error
#   dirty MIB        so much is written to /srv/db/recent and is only in the cache
#   device NAME      /dev/NAME is there, and empty (sdc)
#   dies NAME        the device answers with errors from now on
#   power_cut        everything that runs ends at once, and the machine starts again
#   other_host       this is another machine now, which knows nothing of pool and volume
#   are_settings_of_postgres FILE   PostgreSQL knows each, if it is installed here (scripts/setup does not: it would start a server)
#   prometheus_runs  the service runs with a pool and a volume on files; Prometheus and node_exporter as their packages configure them
#   is_told_by_node_exporter   Prometheus has the metrics from node_exporter, which has no objections; it is told that the daemon is down
#   is_scraped HOST:PORT   Prometheus has asked the daemon there
#   has_rules        Prometheus has the rules, and no alert is active
#   data_is_there [FOLDER]   the data of new_machine is there (default: /srv/db)
#
# The devices are mapped by device mapper onto files, so that they can fail. $STAGE is a folder that outlives the directions.

STAGE=/run/stage
declare -A SIZES=([sdb]=128M [sdc]=128M [nvme0n1]=128M [nvme1n1]=128M)

# Everything takes longer where processors are emulated.
wait_for() { # SECONDS COMMAND...
    local slowness=${E2E_SLOWNESS:-1}
    local until=$((SECONDS + $1 * ${slowness%.*}))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$until" ] || { echo "not within time: $*" && return 1; }
        sleep 0.2
    done
}

# device NAME: an empty one, under the name that it has in the pages.
device() {
    local loop
    dmsetup remove --force "guide-$1" 2>/dev/null || true
    losetup -j "$STAGE/$1" -O NAME -n | xargs -r -n 1 losetup -d
    rm -f "$STAGE/$1" "/dev/$1"
    truncate -s "${SIZES[$1]}" "$STAGE/$1"
    loop=$(losetup --find --show "$STAGE/$1")
    dmsetup create "guide-$1" --noudevsync --table "0 $(blockdev --getsz "$loop") linear $loop 0"
    mknod "/dev/$1" b $((0x$(stat -L -c %t "/dev/mapper/guide-$1"))) $((0x$(stat -L -c %T "/dev/mapper/guide-$1")))
}

stop_all() {
    local name
    systemctl disable --now forebay >/dev/null 2>&1 || true
    for name in $(forebay ublk list --json 2>/dev/null | sed -n 's/.*"name": "\(.*\)".*/\1/p'); do forebay ublk remove "$name" --force; done
    wait_for 10 sh -c 'umount -l /srv/* /mnt 2>/dev/null; ! grep -q " /srv/" /proc/mounts' || true
}

new_machine() {
    local name
    mkdir -p "$STAGE" /srv/db
    stop_all
    rm -rf /var/lib/forebay/* /etc/systemd/system/forebay.service.d /run/manager
    [ -e "$STAGE/forebay.toml" ] || cp -a /etc/forebay/forebay.toml "$STAGE/"
    cp -a "$STAGE/forebay.toml" /etc/forebay/
    sed -i '/forebay/d' /etc/fstab
    for name in sdb nvme0n1 nvme1n1; do device "$name"; done
    # Nothing is left for the kernel to write later, at a time of its own.
    mkfs.ext4 -q -N 1024 -E lazy_itable_init=0,lazy_journal_init=0 /dev/sdb
    mount /dev/sdb /srv/db
    head -c 3M /dev/urandom | split -b 1M - /srv/db/table-
    (cd /srv/db && sha256sum table-*) >"$STAGE/sums"
    sync -f /srv/db
}

# What the page before has left will do, if it is that.
attached() {
    if is_attached 2>/dev/null; then
        rm -f /srv/db/users* /srv/db/recent
        forebay set db idle_delay= dirty_low_pct= >/dev/null
        return
    fi
    new_machine
    forebay cache /srv/db --device /dev/nvme0n1
    data_is_there
}

is_attached() {
    data_is_there && grep -q ' /srv/db ' /proc/mounts && forebay alarms --json | grep -q '"alarms": \[\]' &&
        [ "$(forebay pool list --json | grep -o '"path": "/dev/[^"]*"')" = '"path": "/dev/nvme0n1"' ] &&
        [ "$(forebay volume list --json | grep -o '"mode": "[^"]*"')" = '"mode": "writeback"' ]
}

data_is_there() { (cd "${1:-/srv/db}" && sha256sum --quiet -c "$STAGE/sums"); }

# They have begun afterwards, or cannot: fio that is ended before says nothing, and laying out its file takes long on a busy machine.
users() {
    rm -f "$STAGE/begun"
    (cd "$STAGE" && exec fio --name=users --directory=/srv/db --size=8M --rw=randrw --bs=4k --ioengine=io_uring --direct=1 --iodepth=4 --rate_iops=50,50 \
        --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_backlog=256 --time_based --runtime=120 \
        --exec_prerun="touch $STAGE/begun" --output="$STAGE/fio" >/dev/null 2>&1) &
    echo $! >"$STAGE/users.pid"
    wait_for 60 have_begun
}

have_begun() { [ -e "$STAGE/begun" ] || [ ! -e "/proc/$(cat "$STAGE/users.pid")" ]; }

users_done() {
    kill -TERM "$(cat "$STAGE/users.pid")"
    while [ -e "/proc/$(cat "$STAGE/users.pid")" ]; do sleep 0.2; done
    ! grep -E '^(verify|crc32c): |err= *[1-9]' "$STAGE/fio"
    grep -q 'Run status' "$STAGE/fio"
}

dirty() {
    forebay set db idle_delay=off dirty_low_pct=60 --temporary >/dev/null
    head -c "$1M" /dev/urandom >/srv/db/recent
    sync -f /srv/db
    sha256sum /srv/db/recent | cut -d' ' -f1 >"$STAGE/recent"
    echo 3 >/proc/sys/vm/drop_caches
}

dies() {
    dmsetup suspend --nolockfs "guide-$1"
    dmsetup load "guide-$1" --table "0 $(blockdev --getsz "/dev/$1") error"
    dmsetup resume --noudevsync "guide-$1"
}

# What runs ends at once. The block device waits for its daemon, so what is mounted from it meets errors: as if memory were gone.
power_cut() {
    kill -9 "$(cat /run/manager.pid)" "$(cat /run/manager/main.pid)"
    sleep 1
    forebay ublk remove db --force
    kill -9 "$(cat "$STAGE/users.pid")" || true
    wait_for 20 umount /srv/db
    systemctl start forebay
}

# What a host knows: state folder and configuration.
other_host() {
    systemctl stop forebay
    rm -rf /var/lib/forebay/*
    cp -a "$STAGE/forebay.toml" /etc/forebay/
    systemctl start forebay
}

prometheus_runs() {
    install -d -o forebay "$STAGE/monitored"
    systemctl start forebay
    truncate -s 64M "$STAGE/monitored/db.img"
    chown forebay: "$STAGE/monitored/db.img"
    forebay pool create fast --device "$STAGE/monitored/flash.img:64MiB" >/dev/null
    forebay volume attach db --backing "file:$STAGE/monitored/db.img" >/dev/null
    mkdir -p /var/lib/prometheus/node-exporter
    setsid prometheus-node-exporter --log.level=error >"$STAGE/node-exporter.log" 2>&1 &
    echo $! >/run/node-exporter.pid
    setsid prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path="$STAGE/tsdb" --log.level=warn \
        >"$STAGE/prometheus.log" 2>&1 &
    echo $! >/run/prometheus.pid
    wait_for 30 asks_prometheus rules '"status":"success"'
}

# asks_prometheus WHAT WORDS [QUERY]: its API answers with the words.
asks_prometheus() { curl -fsSG "http://localhost:9090/api/v1/$1" --data-urlencode "query=${3:-}" 2>/dev/null | grep -q -- "$2"; }

is_scraped() {
    kill -0 "$(cat /run/prometheus.pid)"
    wait_for 40 asks_prometheus query ',"1"\]' "up{job=\"forebay\",instance=\"$1\"}" || { cat "$STAGE/prometheus.log" && return 1; }
}

has_rules() {
    wait_for 40 asks_prometheus rules '"name":"ForebayDown"'
    wait_for 40 asks_prometheus query '"result":\[\]' 'ALERTS{alertname=~"Forebay.*"}'
}

is_told_by_node_exporter() {
    local told='forebay_pool_state{job="node",pool="fast",state="open"} * on (instance) forebay_up'
    wait_for 40 asks_prometheus query ',"1"\]' "$told" || { cat "$STAGE/node-exporter.log" && return 1; }
    wait_for 40 asks_prometheus query ',"0"\]' 'node_textfile_scrape_error'
    # It says so of metrics that it has itself.
    if grep -i 'textfile\|gathering\|collected' "$STAGE/node-exporter.log"; then return 1; fi
    systemctl stop forebay
    wait_for 40 asks_prometheus query ',"0"\]' forebay_up
    wait_for 40 asks_prometheus query '"result":\[\]' forebay_pool_state
    systemctl start forebay
}

are_settings_of_postgres() {
    local server name
    server=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | tail -n 1)
    [ -n "$server" ] || return 0
    su postgres -s /bin/sh -c "$server --describe-config" | cut -f1 >"$STAGE/settings"
    for name in $(sed -n 's/ =.*//p' "$1"); do
        grep -qx "$name" "$STAGE/settings" || { echo "PostgreSQL does not know $name" && return 1; }
    done
}

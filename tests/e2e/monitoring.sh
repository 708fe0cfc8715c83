#!/usr/bin/env bash
# What is there for Prometheus: both texts of /metrics, the rules and their tests, the token for looking, and a real Prometheus that
# scrapes the port without a token. Every expression of the Grafana dashboard has series there, and alerts come. A pool that does not
# answer hides no other, neither there nor from commands.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/tls-lib.sh"
PATH=$PATH:$ROOT/target/prometheus/usr/bin
need prometheus promtool curl jq qemu-io python3

MONITORING=$ROOT/packaging/monitoring
truncate -s 64M "$T/db.img" "$T/old.img" "$T/far.img"
for token in token read-token; do (umask 077; head -c 32 /dev/urandom | base64 >"$T/$token"); done
TCP=$(free_port)
OPEN=127.0.0.1:$(free_port)
PROMETHEUS=http://127.0.0.1:$(free_port)
config <<END
admin_tcp = { listen = "127.0.0.1:$TCP", token_file = "$T/token", read_token_file = "$T/read-token" }

[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[pool.second]
devices = [{ path = "$T/second.img", size = "64MiB" }]

[volume.far]
pool = "second"
backing = "file:$T/far.img"
exports = []

[volume.db]
pool = "fast"
backing = "file:$T/db.img"
exports = ["nbd+unix:///db?socket=$T/nbd.sock"]
flush_period = "1h"

[volume.old]
pool = "fast"
backing = "file:$T/old.img"
exports = ["nbd+unix:///old?socket=$T/nbd.sock"]
idle_delay = "off"
END
serve
client() { qemu-io -f raw "$@" >"$T/qemu-io.out" 2>&1 || { cat "$T/qemu-io.out"; fail "the client got an error"; }; }
DB="nbd+unix:///db?socket=$T/nbd.sock" OLD="nbd+unix:///old?socket=$T/nbd.sock"
client -c 'write 0 4M' -c flush -c 'read 2M 8M' "$DB"
client -c 'write 0 1M' -c flush "$OLD"

say "both texts"
curl -fsS --unix-socket "$ADMIN" http://x/metrics >"$T/metrics" || fail "no metrics"
promtool check metrics <"$T/metrics" >"$T/lint" 2>&1 || { cat "$T/lint"; fail "promtool finds something"; }
[ ! -s "$T/lint" ] || { cat "$T/lint"; fail "promtool finds something"; }
curl -fsS --unix-socket "$ADMIN" -H 'Accept: application/openmetrics-text' http://x/metrics | tail -1 | grep -x '# EOF' >/dev/null || fail "OpenMetrics"
for series in 'forebay_build_info{version="[0-9.]*"} 1' 'forebay_pool_state{pool="fast",state="open"} 1' \
    'forebay_volume_mode{pool="fast",volume="db",mode="writeback"} 1' 'forebay_flush_period_seconds{pool="fast",volume="db"} 3600.0' \
    'forebay_alarms{severity="error"} 0' 'process_resident_memory_bytes [1-9]' 'forebay_cache_written_bytes_total{pool="fast"} [1-9]'; do
    grep -q "^$series" "$T/metrics" || fail "there is no $series"
done

say "over TCP with the token for looking, and on a port of its own without one"
[ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$TCP/metrics")" = 401 ] || fail "no token is asked for"
has_metrics() { curl -fsS -o "$T/metrics" "$@" && grep -q ^forebay_build_info "$T/metrics"; }
has_metrics -H "Authorization: Bearer $(cat "$T/read-token")" "http://127.0.0.1:$TCP/metrics" || fail "the token for looking"
refused 2 "other hosts reach 0.0.0.0.*admin_tcp" "$FOREBAY" set --daemon metrics_listen=0.0.0.0:1 --admin "$ADMIN"
refused 2 "used by the admin API already" "$FOREBAY" set --daemon "metrics_listen=127.0.0.1:$TCP" --admin "$ADMIN"
ask set --daemon "metrics_listen=$OPEN"
grep -qx "metrics: http://$OPEN/metrics" "$T/ask.out" || fail "it does not say where: $(cat "$T/ask.out")"
has_metrics "http://$OPEN/metrics" || fail "no metrics without a token"

say "rules and their tests"
promtool check rules "$MONITORING/forebay.rules.yml" >"$T/lint" 2>&1 || { cat "$T/lint"; fail "the rules"; }
promtool test rules "$MONITORING/forebay.rules.test.yml" >"$T/lint" 2>&1 || { cat "$T/lint"; fail "the tests of the rules"; }

say "a Prometheus that scrapes the daemon"
cat >"$T/prometheus.yml" <<END
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: ["$MONITORING/forebay.rules.yml"]
scrape_configs:
  - job_name: forebay
    static_configs: [{ targets: ["$OPEN"] }]
END
prometheus --config.file="$T/prometheus.yml" --storage.tsdb.path="$T/tsdb" --web.listen-address="${PROMETHEUS#http://}" \
    --log.level=warn >"$T/prometheus.log" 2>&1 &
SERVER=$!
on_exit kill "$SERVER"
value() { curl -fsS "$PROMETHEUS/api/v1/query" --data-urlencode "query=$1" 2>"$T/curl.err" | jq -e -r '.data.result[0].value[1]'; }
is() { [ "$(value "$1")" = "$2" ]; } # EXPRESSION VALUE
eventually 60 is 'up{job="forebay"}' 1 || { cat "$T/prometheus.log"; fail "it does not reach the daemon"; }
for ((i = 0; i < 5; i++)); do
    client -c "write $((i + 5))M 1M" -c flush -c "read ${i}M 2M" -c "discard 40M 1M" "$DB"
    sleep 0.6
done

say "an alert for a volume whose dirty data was left behind"
ask volume detach old --keep
alert() { is "count(ALERTS{alertname=\"$1\"})" 1; }
eventually 40 alert ForebayVolumeAbsentWithDirtyData || fail "no alert: $(cat "$T/curl.err")"
# The rule is computed each second, and what is dirty changes.
same_dirty() { is forebay:pool_dirty_bytes "$(value '4096 * sum(forebay_dirty_blocks) + sum(forebay_absent_dirty_bytes)')"; }
eventually 30 same_dirty || fail "the dirty data of a pool"
eventually 30 is 'sum(forebay_absent_dirty_bytes)' 1048576 || fail "the dirty data of the absent volume"

say "every expression of the dashboard has series"
"$ROOT/target/venv/bin/python" "$E2E/grafana_expressions.py" "$MONITORING/forebay.dashboard.json" "$PROMETHEUS" || fail "the dashboard"

hides_no_other() {
    mkfifo "$T/word"
    python3 "$E2E/hold_thread.py" "$DAEMON" pool-second <"$T/word" >"$T/held" 2>&1 &
    HOLDER=$!
    exec 8>"$T/word"
    eventually 20 grep -q held "$T/held" || fail "the thread is not held: $(cat "$T/held")"
    tells() { ask "${@:2}" && grep -Eq "$1" "$T/ask.out"; }
    is_told() { # WORDS COMMAND...: the other pool may be late for once on a busy machine
        eventually 20 tells "$@" || { cat "$T/ask.out"; fail "forebay ${*:2} does not say $1"; }
    }
    is_told 'pool second.*has not answered for' status
    is_told 'second.*NOT ANSWERING' pool list
    is_told 'fast .* ok' pool list
    is_told 'far .*unknown' volume list
    is_told 'db .*serving' volume list
    is_told 'db in pool fast' stats db
    ask alarms
    refused 1 'the pool does not answer' "$FOREBAY" stats far --admin "$ADMIN"
    eventually 30 is 'forebay_pool_state{pool="second",state="not-answering"}' 1 || fail "/metrics does not tell"
    eventually 30 is 'forebay_pool_state{pool="fast",state="open"}' 1 || fail "the other pool is not told"
    overview() { curl -fsS --unix-socket "$ADMIN" http://x/v1/overview | jq -e '[.pools[].not_answering] == [false, true]' >/dev/null; }
    eventually 30 overview || fail "the dashboard"
    exec 8>&-
    wait "$HOLDER" || fail "the thread was not let go"
    is_well() { ask pool list && ! grep -q ANSWERING "$T/ask.out"; }
    eventually 20 is_well || fail "it answers, and is told not to: $(cat "$T/ask.out")"
}
say "a pool that does not answer hides no other"
if [ "$(id -u)" = 0 ]; then hides_no_other; else say "not tried: only root can hold a thread of another process"; fi

say "an alert for a daemon that is gone"
unserve
eventually 40 alert ForebayDown || fail "no alert"

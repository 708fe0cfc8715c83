#!/usr/bin/env bash
# The guide: the page on monitoring, with a real Prometheus, in a root and a network of its own. It needs no block device, and so no
# guest.
if [ "$(id -u)" = 0 ] && [ -z "${OWN_NET:-}" ]; then
    OWN_NET=1 exec unshare --net -- "$0" "$@"
fi
. "$(dirname "$0")/root-lib.sh"
PROMETHEUS=$ROOT/target/prometheus
[ -x "$PROMETHEUS/usr/bin/prometheus-node-exporter" ] || skip "prometheus and node_exporter are not installed (scripts/setup lab installs them)"
need ip openssl setpriv systemd-sysusers

ip link set lo up
new_root
ln -sfn /proc/self/fd "$R/dev/fd"
mkdir -p "$R/run/stage" "$R/etc/prometheus"
# As the package has it, and in less time.
sed 's/scrape_interval: *15s/scrape_interval: 1s/' "$PROMETHEUS/etc/prometheus/prometheus.yml" >"$R/etc/prometheus/prometheus.yml"
cp -f "$PROMETHEUS"/usr/bin/{prometheus,prometheus-node-exporter,promtool} "$R/usr/bin/"
FOREBAY=$FOREBAY DESTDIR=$R PREFIX=/usr "$ROOT/scripts/install" >/dev/null
in_root systemd-sysusers forebay.conf
in_root systemd-tmpfiles --create forebay.conf
in_root chown -R forebay: /etc/forebay
ssl() { openssl "$@" 2>"$T/openssl.err" || { cat "$T/openssl.err"; fail "openssl $1"; }; }
ssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$R/etc/forebay/key.pem" -out "$R/etc/forebay/cert.pem"
chmod 600 "$R/etc/forebay/key.pem"
cp "$R/etc/forebay/cert.pem" "$R/etc/prometheus/forebay-ca.pem"
on_exit 'for pid in $(cat "$R"/run/{prometheus,node-exporter,textfile}.pid); do [ "/proc/$pid/root" -ef "$R" ] && kill "$pid"; done'
on_exit 'in_root systemctl stop forebay'
in_root python3 "$ROOT/tests/guide/execute.py" "$ROOT/docs/operate/monitoring.md" || fail "the page is not as it says"
for alert in $(sed -n 's/^ *- alert: //p' "$ROOT/packaging/monitoring/forebay.rules.yml" | sort -u); do
    grep -q "^| \`$alert\` " "$ROOT/docs/operate/monitoring.md" || fail "docs/operate/monitoring.md does not have the alert $alert"
done

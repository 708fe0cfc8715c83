#!/usr/bin/env bash
# The dashboard in a real browser: with and without a token, with live figures of 64 volumes, alarms, jobs that are cancelled, a
# daemon that is restarted, at several widths, light and dark. dashboard.py has the steps.
#
#   PICTURES=FOLDER   takes pictures for the documentation instead
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
. "$E2E/tls-lib.sh"
PYTHON=$ROOT/target/browser/bin/python
[ -x "$PYTHON" ] || skip "playwright is not installed (scripts/setup lab installs it)"
need chromium

for token in token read-token; do (umask 077; head -c 32 /dev/urandom | base64 >"$T/$token"); done
TCP=$(free_port)
volume() { # NAME SIZE [SETTING...]
    truncate -s "$2" "$T/$1.img"
    printf '\n[volume.%s]\npool = "fast"\nbacking = "file:%s"\nexports = ["nbd+unix:///%s?socket=%s"]\n' "$1" "$T/$1.img" "$1" "$T/nbd.sock"
    shift 2
    [ $# -eq 0 ] || printf '%s\n' "$@"
}
{
    cat <<END
admin_tcp = { listen = "127.0.0.1:$TCP", token_file = "$T/token", read_token_file = "$T/read-token" }

[pool.fast]
devices = [{ path = "$T/flash.img", size = "96MiB" }]
endurance_budget = "1TB"
END
    # A flush that takes long enough to be cancelled.
    volume db 256M 'max_destage_bandwidth = "128KiB"' 'idle_delay = "off"' ${PICTURES:+'emulate = "hdd-7200"'}
    volume old 1M 'idle_delay = "off"'
    if [ -n "${PICTURES:-}" ]; then
        for name in logs mail vm-build; do volume "$name" 256M; done
    else
        for number in {01..62}; do volume "v$number" 1M; done
    fi
} | config
cat >"$T/daemon" <<END
#!/usr/bin/env bash
# stop or start: dashboard.sh does it, whose child the daemon is.
rm -f "$T/done"
echo "\$1" >"$T/wanted"
until [ -e "$T/done" ]; do sleep 0.05; done
END
chmod +x "$T/daemon"
serve
qemu-io -f raw -c 'write 0 64k' -c flush "nbd+unix:///old?socket=$T/nbd.sock" >/dev/null || fail "the client got an error"

PYTHONDONTWRITEBYTECODE=1 "$PYTHON" "$E2E/dashboard.py" "$T" "$TCP" ${PICTURES:+--pictures "$PICTURES"} &
BROWSER=$!
on_exit kill "$BROWSER"
while kill -0 "$BROWSER" 2>/dev/null; do
    if [ -s "$T/wanted" ]; then
        wanted=$(cat "$T/wanted")
        : >"$T/wanted"
        if [ "$wanted" = stop ]; then unserve; else serve; fi
        touch "$T/done"
    fi
    sleep 0.1
done
wait "$BROWSER" || fail "the dashboard"

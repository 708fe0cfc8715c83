#!/usr/bin/env bash
# The Ansible role: it installs the package, writes the configuration and starts the service; a second time it changes nothing. A
# changed configuration is read by the daemon, which goes on; a wrong one never gets to its place. A newer package takes over.
. "$(dirname "$0")/root-lib.sh"
need dpkg-deb setpriv python3
A=$ROOT/target/ansible/bin
[ -x "$A/ansible-playbook" ] || skip "there is no Ansible (scripts/setup lab installs it)"
/usr/bin/python3 -c 'import apt' 2>/dev/null || skip "python3-apt is not installed (scripts/setup lab installs it)"
export PATH=$A:$PATH HOME=$T ANSIBLE_NOCOLOR=1 ANSIBLE_LOCALHOST_WARNING=False

say "ansible-lint has nothing to say"
cp -r "$ROOT/packaging/ansible" "$T/ansible"
(cd "$T/ansible" && ansible-lint --offline --nocolor --profile production roles/forebay) >"$T/lint.out" 2>&1 || { cat "$T/lint.out"; fail "ansible-lint"; }

package() { VERSION=$1 SOURCE_DATE_EPOCH=1700000000 FOREBAY=$FOREBAY "$ROOT/scripts/package" --quick --to "$T/packages" deb; }
DEB=$(package 0.1.1)
new_root
on_exit 'for pid in $(cat "$R/run/manager.pid" "$R/run/manager/main.pid"); do [ "/proc/$pid/root" -ef "$R" ] && kill -9 "$pid"; done'
rm -rf "$R"/etc/apt/sources.list "$R"/etc/apt/sources.list.d/*
in_root install -d -m 777 /srv/forebay
pool() { printf "[pool.fast]\ndevices = [{ path = \"/srv/forebay/flash.img\", size = \"64MiB\" }]\nreclaim_policy = \"%s\"\n" "$1"; }
# play DEB CONFIGURATION: as on a machine that is managed.
play() {
    local text
    text=$(sed 's/^/          /' <<<"$2")
    cat >"$T/play.yml" <<END
- hosts: localhost
  connection: local
  gather_facts: false
  vars: { ansible_python_interpreter: /usr/bin/python3 }
  roles:
    - role: $T/ansible/roles/forebay
      vars:
        forebay_deb: $1
        forebay_config: |
$text
END
    in_root env PATH="$A:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root ANSIBLE_NOCOLOR=1 "$A/ansible-playbook" -i localhost, "$T/play.yml" >"$T/play.out" 2>&1
}
must_play() { play "$@" || { cat "$T/play.out"; fail "ansible-playbook"; }; }
changes() { sed -n 's/.* changed=\([0-9]*\) .*/\1/p' "$T/play.out"; }
main_pid() { cat "$R/run/manager/main.pid"; }

say "installs, configures and starts; again, it changes nothing"
must_play "$DEB" "$(pool fifo)"
before=$(main_pid)
in_root forebay pool show fast >/dev/null || fail "the pool is not served"
[ -e "$R/run/enabled" ] || fail "the service is not enabled"
must_play "$DEB" "$(pool fifo)"
[ "$(changes)" = 0 ] || { cat "$T/play.out"; fail "it changes something again"; }

say "a changed configuration is read, and nothing is restarted; a wrong one is refused"
must_play "$DEB" "$(pool lru)"
[ "$(in_root forebay get --pool fast reclaim_policy)" = lru ] || { cat "$T/play.out"; fail "the daemon has not read the change"; }
if play "$DEB" "$(pool lru) nonsense"; then fail "it takes a wrong configuration"; fi
in_root forebay config check >/dev/null || fail "a wrong configuration is in place"
[ "$(main_pid)" = "$before" ] || fail "the daemon was restarted"

say "a newer package takes over"
must_play "$(package 0.1.2)" "$(pool lru)"
[ "$(main_pid)" != "$before" ] || { cat "$T/play.out"; fail "the old program is the daemon"; }
in_root forebay pool show fast >/dev/null || fail "the pool is not served"
# But for what writes the metrics of the daemon into a file.
if grep restart "$R/run/systemctl.log" | grep -v ' forebay-textfile.service$'; then fail "something was restarted"; fi

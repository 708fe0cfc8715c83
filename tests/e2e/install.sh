#!/usr/bin/env bash
# `make install` puts everything where a system finds it, twice as well, and `make uninstall` takes all of it away.
. "$(dirname "$0")/lib.sh"
need nbdinfo man systemd-analyze systemd-sysusers systemd-tmpfiles

D=$T/root
mkdir -p "$D/etc"
install_as() { make --no-print-directory -C "$ROOT" "$1" FOREBAY="$FOREBAY" DESTDIR="$D" PREFIX="$2" >"$T/out" 2>&1; }

say "into /usr, and once more over it, while the first runs"
install_as install /usr || { cat "$T/out"; fail "make install"; }
grep -q "installed forebay" "$T/out" || fail "it does not say what it did: $(cat "$T/out")"
make_backing 16M
NEW=$FOREBAY FOREBAY=$D/usr/bin/forebay
start
FOREBAY=$NEW
install_as install /usr || { cat "$T/out"; fail "make install over a program that runs"; }
assert_serving "the program was replaced"
stop

say "the program, its pages and its completions"
"$D/usr/bin/forebay" --version >/dev/null || fail "it does not run"
for page in man1/forebay.1 man1/forebay-volume-attach.1 man5/forebay.toml.5; do
    man --warnings -l "$D/usr/share/man/$page" >"$T/page" 2>"$T/warnings" || fail "$page is no manual page"
    [ ! -s "$T/warnings" ] || fail "$page: $(cat "$T/warnings")"
    grep -q NAME "$T/page" || fail "$page is empty"
done
bash -n "$D/usr/share/bash-completion/completions/forebay" || fail "the completions of bash"
[ -s "$D/usr/share/zsh/site-functions/_forebay" ] && [ -s "$D/usr/share/fish/vendor_completions.d/forebay.fish" ] || fail "completions"
cp "$D/usr/share/doc/forebay/forebay.example.toml" "$T/forebay.toml"
"$D/usr/bin/forebay" config check "$T/forebay.toml" >"$T/checked" 2>&1 || { cat "$T/checked"; fail "the example is no configuration"; }

say "the unit, its user and its folders"
"$D/usr/bin/forebay" config check "$D/etc/forebay/forebay.toml" >/dev/null || fail "what is installed is no configuration"
systemd-sysusers --root="$D" || fail "the user cannot be made"
grep -q '^forebay:' "$D/etc/passwd" || fail "there is no user"
systemd-tmpfiles --root="$D" --create forebay.conf || fail "the folders cannot be made"
[ "$(stat -c %a "$D/etc/forebay") $(stat -c %a "$D/etc/forebay/keys")" = "750 700" ] || fail "the folders have other modes"
sed -n '/^# .*ublk.conf$/,/^```$/p' "$ROOT/docs/operate/boot.md" | sed '1d;$d' | diff - "$D/usr/share/forebay/ublk.conf" ||
    fail "docs/operate/boot.md has another drop-in than the package"
grep -q '^ExecStart=/usr/bin/forebay serve' "$D/usr/lib/systemd/system/forebay.service" || fail "the unit starts something else"

say "removed: nothing is left of it, but a configuration, which another installation leaves as it is"
echo '# mine' >>"$D/etc/forebay/forebay.toml"
install_as install /usr || { cat "$T/out"; fail "make install"; }
install_as uninstall /usr || { cat "$T/out"; fail "make uninstall"; }
find "$D/usr" "$D/etc/needrestart" ! -type d >"$T/left"
[ ! -s "$T/left" ] || fail "left: $(cat "$T/left")"
grep -q '^# mine' "$D/etc/forebay/forebay.toml" || fail "the configuration is not what it was"

say "another prefix, which the unit knows; and what cannot be"
install_as install /opt/forebay || { cat "$T/out"; fail "make install"; }
grep -q '^ExecStart=/opt/forebay/bin/forebay serve' "$D/opt/forebay/lib/systemd/system/forebay.service" || fail "the unit starts something else"
grep -q 'IMPORT{program}="/opt/forebay/bin/forebay inspect' "$D/opt/forebay/lib/udev/rules.d/61-forebay.rules" || fail "udev starts something else"
refused 1 "no program at
make build" env DESTDIR="$D" FOREBAY="$T/none" "$ROOT/scripts/install"
refused 1 "no absolute path
PREFIX=/usr" env DESTDIR="$D" PREFIX=usr FOREBAY="$FOREBAY" "$ROOT/scripts/install"
exit 0

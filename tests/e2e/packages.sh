#!/usr/bin/env bash
# Packages: they are what `make install` installs, the same bytes wherever they are made, and right for lintian. In a root of their
# own: installed, nothing runs. Upgraded under fio, no client sees an error: the new program takes over, or, where that cannot be,
# the old one goes on. Removed only when nothing is served, and data stays.
. "$(dirname "$0")/root-lib.sh"
need_fio
need dpkg-deb lintian rpmbuild rpmlint fusermount3 setpriv python3

say "the same bytes from another folder, at another time, with another umask"
package() { # FOLDER VERSION KIND...
    VERSION=$2 SOURCE_DATE_EPOCH=1700000000 FOREBAY=$FOREBAY "$ROOT/scripts/package" --quick --to "$1" "${@:3}" >/dev/null ||
        fail "scripts/package"
}
package "$T/one" 0.1.1 deb rpm
mkdir -p "$T/elsewhere/docs"
cp -r "$ROOT"/{scripts,packaging,Cargo.toml,CHANGELOG.md,LICENSE} "$T/elsewhere/"
cp -r "$ROOT"/docs/{use,operate} "$T/elsewhere/docs/"
find "$T/elsewhere" -exec touch -d 2001-02-03 {} +
(
    umask 077
    export TZ=Pacific/Auckland
    ROOT=$T/elsewhere package "$T/two" 0.1.1 deb rpm
)
for file in "$T"/one/*; do assert_same "$file" "$T/two/${file##*/}" "made twice"; done
DEB=$(echo "$T"/one/*.deb) RPM=$(echo "$T"/one/*.rpm)

say "what is in them is what is installed"
FOREBAY=$FOREBAY DESTDIR=$T/tree PREFIX=/usr "$ROOT/scripts/install" >/dev/null
installed() { (cd "$T/tree" && find . -type f -printf '/%P\n') | sed -e '/share\/man/s/$/.gz/' "$@" | sort; }
dpkg-deb --fsys-tarfile "$DEB" | tar -t | sed -n -e 's/^\.//' -e '/[^/]$/p' | sort >"$T/in-deb"
{
    installed -e 's/CHANGELOG.md/changelog.gz/' -e 's/LICENSE/copyright/'
    printf '%s\n' /usr/share/doc/forebay/changelog.Debian.gz /usr/share/lintian/overrides/forebay
} | sort | diff - "$T/in-deb" || fail "the Debian package has other files"
installed -e 's,doc/forebay/LICENSE,licenses/forebay/LICENSE,' | diff - <(rpm -qp --nosignature -l "$RPM" | grep -v '^/etc/forebay$' | sort) ||
    fail "the RPM package has other files"
rpm -qp --nosignature -c "$RPM" >"$T/rpm-config"
grep -qx /etc/forebay/forebay.toml "$T/rpm-config" || fail "RPM would replace a configuration"

say "a full disk: what was installed stays whole, and the same command goes on once there is room"
mkdir "$T/small"
mount -t tmpfs -o size=1M tmpfs "$T/small"
on_exit "umount -l '$T/small'"
install -D -m 755 "$(type -P true)" "$T/small/usr/bin/forebay"
install_small() { refused "$1" "$2" env FOREBAY="$FOREBAY" DESTDIR="$T/small" PREFIX=/usr "$ROOT/scripts/install"; }
install_small 1 'bin/forebay cannot be written
make room'
"$T/small/usr/bin/forebay" || fail "the program that was there is gone"
[ "$(find "$T/small" -type f | wc -l)" = 1 ] || fail "half of a file is left: $(find "$T/small" -type f)"
mount -o remount,size=1G "$T/small"
FOREBAY=$FOREBAY DESTDIR=$T/small PREFIX=/usr "$ROOT/scripts/install" >/dev/null
assert_same "$FOREBAY" "$T/small/usr/bin/forebay" "the program"

say "lintian and rpmlint have nothing to say"
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$DEB" || fail "lintian"
rpmlint -c "$ROOT/packaging/rpmlint.toml" "$RPM" >"$T/rpmlint.out" 2>&1 || { cat "$T/rpmlint.out"; fail "rpmlint"; }
grep -q ' 0 errors, 0 warnings' "$T/rpmlint.out" || { cat "$T/rpmlint.out"; fail "rpmlint"; }

say "installed: there is a user, and nothing runs; purged at once: nothing is left"
new_root
install_deb() { in_root dpkg --force-unsafe-io --no-triggers --install "$1" >"$T/dpkg.out" 2>&1; }
install_deb "$DEB" || { cat "$T/dpkg.out"; fail "dpkg --install"; }
for folder in /etc/forebay:forebay:750 /etc/forebay/forebay.toml:forebay:640 /etc/forebay/keys:root:700; do
    IFS=: read -r path owner mode <<<"$folder"
    [ "$(in_root stat -c %U:%a "$path")" = "$owner:$mode" ] || fail "$path is $(in_root stat -c %U:%a "$path")"
done
in_root forebay config check >/dev/null || fail "the configuration of the package is wrong"
if grep -E '(^| )(start|restart|enable|preset)' "$R/run/systemctl.log"; then fail "the package starts something"; fi
in_root dpkg --no-triggers --purge forebay >"$T/dpkg.out" 2>&1 || { cat "$T/dpkg.out"; fail "dpkg --purge"; }
for path in /etc/forebay /var/lib/forebay /usr/bin/forebay /usr/share/doc/forebay; do
    [ ! -e "$R$path" ] || fail "purged, and $path is there: $(find "$R$path")"
done
install_deb "$DEB" || { cat "$T/dpkg.out"; fail "dpkg --install"; }

# --- a service, as the unit makes it
in_root install -d -o forebay -g forebay /run/forebay /run/manager /var/lib/forebay /srv/forebay
AS_SERVICE=("${IN_ROOT[@]}" setpriv --reuid=forebay --regid=forebay --init-groups --reset-env)
"${AS_SERVICE[@]}" truncate -s 128M /srv/forebay/vol.img /srv/forebay/file.img
: >"$T/stderr"
"${AS_SERVICE[@]}" python3 "$E2E/service_manager.py" /run/manager /usr/bin/forebay serve --config /etc/forebay/forebay.toml \
    >"$T/manager.out" 2>>"$T/stderr" &
MANAGER=$!
echo "$MANAGER" >"$R/run/manager.pid"
on_exit 'main=$(cat "$R/run/manager/main.pid"); [ "/proc/$main/root" -ef "$R" ] && kill -9 "$main"'
on_exit 'kill_jobs KILL $MANAGER'
eventually "$READY_SECONDS" test -s "$R/run/manager/ready" || fail "not ready after $READY_SECONDS s"
operate() { in_root forebay "$@" >"$T/ask.out" 2>&1 || { cat "$T/ask.out"; fail "forebay $*"; }; }
main_pid() { cat "$R/run/manager/main.pid"; }
operate pool create fast --device /srv/forebay/flash.img:64MiB
operate volume attach vol --pool fast --backing file:/srv/forebay/vol.img --export 'nbd+unix:///vol?socket=/run/forebay/vol.sock'
[ "$(stat -c %a "$R/etc/forebay/forebay.toml")" = 640 ] || fail "the changed configuration has other permissions"

# while_fio NAME OPTION... -- COMMAND...: fio ("${FIO[@]}") writes and verifies while the command runs, and goes on after it.
while_fio() {
    local name=$1 options=() out=$R/run/manager/fio-$1.out pid code=0
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    "${FIO[@]}" --name="$name" --rw=randwrite --bs=4k --size=16M --time_based --runtime=120 --verify=crc32c --verify_fatal=1 \
        --verify_backlog=64 --verify_state_save=0 --output="/run/manager/fio-$name.out" "${options[@]}" >/dev/null 2>&1 &
    pid=$!
    on_exit "kill_jobs KILL $pid"
    sleep 1
    "$@"
    sleep 1
    # It ends by itself before that only if it saw an error.
    kill -TERM "$pid" || { cat "$out"; fail "fio has ended"; }
    wait "$pid" || code=$?
    if grep -E '^(verify|crc32c): |err= *[1-9]|error=' "$out"; then fail "fio saw an error (code $code)"; fi
    grep -q 'rwts: total=[1-9]' "$out" || { cat "$out"; fail "fio has verified nothing"; }
}

say "upgraded under fio over NBD: the new program takes over, and fio sees nothing"
package "$T/newer" 0.1.2 deb
upgrade_deb() { install_deb "$T"/newer/forebay_"$1"-*.deb || { cat "$T/dpkg.out"; fail "dpkg --install"; }; }
before=$(main_pid)
FIO=("${IN_ROOT[@]}" fio)
while_fio nbd --ioengine=nbd --iodepth=8 '--uri=nbd+unix:///vol?socket=/run/forebay/vol.sock' -- upgrade_deb 0.1.2
grep -q 'has taken over from' "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not say that it took over"; }
[ "$(main_pid)" != "$before" ] || fail "the old process is the daemon"
[ "/proc/$(main_pid)/exe" -ef "$R/usr/bin/forebay" ] || fail "the daemon is not the program of the package"

say "upgraded on a full disk: the old package and its daemon go on"
before=$(main_pid)
mount -t tmpfs -o size=4k tmpfs "$R/usr/share/forebay"
on_exit "umount -l '$R/usr/share/forebay'"
package "$T/newer" 0.1.3 deb
if install_deb "$T"/newer/forebay_0.1.3-*.deb; then fail "there was room for it"; fi
grep -q 'No space left' "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg failed for another reason"; }
umount "$R/usr/share/forebay"
[ "$(main_pid)" = "$before" ] && [ "/proc/$before/exe" -ef "$R/usr/bin/forebay" ] || fail "the program was replaced"
[ "$(in_root dpkg-query -W -f '${Status} ${Version}' forebay)" = "install ok installed 0.1.2-0forebay1" ] || fail "the old package is not whole"
operate volume list

say "upgraded under fio on a file: the old program goes on, and what to do is said"
operate volume attach file --pool fast --backing file:/srv/forebay/file.img --export fuse:/srv/forebay/file/disk
before=$(main_pid)
FIO=("${AS_SERVICE[@]}" fio)
while_fio fuse --ioengine=psync --filename=/srv/forebay/file/disk -- upgrade_deb 0.1.3
[ "$(main_pid)" = "$before" ] || fail "another process is the daemon"
for words in 'goes on with the program of before' 'are files (fuse:)' 'systemctl restart forebay'; do
    grep -qF "$words" "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not say '$words'"; }
done
[ "$(in_root dpkg-query -W -f '${Status} ${Version}' forebay)" = "install ok installed 0.1.3-0forebay1" ] || fail "the package is not installed"

say "removed: not while something is served; then the daemon stops, and data stays"
if in_root dpkg --no-triggers --remove forebay >"$T/dpkg.out" 2>&1; then fail "the package went while volumes were served"; fi
grep -q 'the daemon serves volumes' "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not say why"; }
[ "$(main_pid)" = "$before" ] && kill -0 "$before" || fail "the daemon is gone"
operate volume detach vol
operate volume detach file
in_root dpkg --no-triggers --remove forebay >"$T/dpkg.out" 2>&1 || { cat "$T/dpkg.out"; fail "dpkg --remove"; }
wait "$MANAGER" || fail "the daemon did not end in an orderly way"
grep -q 'names pools' "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not warn of what is in the caches"; }
in_root dpkg --no-triggers --purge forebay >"$T/dpkg.out" 2>&1 || { cat "$T/dpkg.out"; fail "dpkg --purge"; }
[ ! -e "$R/usr/bin/forebay" ] && [ ! -e "$R/etc/forebay/forebay.toml" ] || fail "purged, and not gone"
[ -s "$R/srv/forebay/flash.img" ] && [ -n "$(find "$R/var/lib/forebay/caches" -name '*.json')" ] || fail "purging took what is known of a cache"
grep -q '/var/lib/forebay stays' "$T/dpkg.out" || { cat "$T/dpkg.out"; fail "dpkg does not say what stays"; }

say "RPM: installed, upgraded, removed"
package "$T/newer" 0.1.2 rpm
in_root rpm -i --nodeps --nosignature "$RPM" >"$T/rpm.out" 2>&1 || { cat "$T/rpm.out"; fail "rpm -i"; }
echo '# mine' >>"$R/etc/forebay/forebay.toml"
in_root rpm -U --nodeps --nosignature "$T"/newer/*.rpm >"$T/rpm.out" 2>&1 || { cat "$T/rpm.out"; fail "rpm -U"; }
grep -q '^# mine' "$R/etc/forebay/forebay.toml" || fail "an upgrade replaced the configuration"
in_root forebay --version >/dev/null || fail "it does not run"
in_root rpm -e forebay >"$T/rpm.out" 2>&1 || { cat "$T/rpm.out"; fail "rpm -e"; }
[ ! -e "$R/usr/bin/forebay" ] || fail "removed, and there it is"

say "what cannot be made is said"
refused 1 'no program at
make build' env FOREBAY="$T/none" "$ROOT/scripts/package" deb
refused 1 'no version of a package' env FOREBAY="$FOREBAY" VERSION=-1 "$ROOT/scripts/package" deb
refused 2 'deb\|dbgsym\|rpm' "$ROOT/scripts/package" tar
exit 0

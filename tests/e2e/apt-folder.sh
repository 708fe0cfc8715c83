#!/usr/bin/env bash
# A signed folder for apt: a machine that has its key installs and upgrades from it. One with another key is refused, and so is a
# folder that was changed after it was signed.
. "$(dirname "$0")/root-lib.sh"
need apt-ftparchive gpg gpgv dpkg-deb apt-get

export GNUPGHOME=$T/gnupg FOREBAY
mkdir -m 700 "$GNUPGHOME"
on_exit 'gpgconf --kill all'
for name in ours theirs; do
    gpg --batch --quiet --passphrase '' --quick-generate-key "$name@example.org" ed25519 sign never 2>"$T/gpg.err" ||
        { cat "$T/gpg.err"; fail "gpg makes no key"; }
done
package() { VERSION=$1 SOURCE_DATE_EPOCH=1700000000 "$ROOT/scripts/package" --quick --to "$T/packages" deb >/dev/null; }
folder() { "$ROOT/packaging/apt-folder" --key ours@example.org "$@" >"$T/folder.out" 2>&1 || { cat "$T/folder.out"; fail "apt-folder"; }; }

say "a folder with one package, from which a machine with its key installs"
new_root
A=$R/srv/apt
mkdir -p "$A"
package 0.1.1
folder "$A" "$T"/packages/forebay_0.1.1-*.deb
rm -rf "$R"/etc/apt/sources.list "$R"/etc/apt/sources.list.d/*
sed "s,^URIs: .*,URIs: file:/srv/apt," "$A/forebay.sources" >"$R/etc/apt/sources.list.d/forebay.sources"
install -D -m 644 "$A/forebay.asc" "$R/etc/apt/keyrings/forebay.asc"
apt_get() { in_root apt-get -q -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--no-triggers -o Dpkg::Options::=--force-unsafe-io "$@" >"$T/apt.out" 2>&1; }
must() { "$@" || { cat "$T/apt.out"; fail "$*"; }; }
must apt_get --error-on=any update
must apt_get --yes --no-install-recommends install forebay
has() { [ "$(in_root dpkg-query -W -f '${Status} ${Version}' forebay)" = "install ok installed $1-0forebay1" ] || fail "it is not version $1"; }
has 0.1.1

say "a newer one beside it, to which the machine upgrades"
package 0.1.2
folder "$A" "$T"/packages/forebay_0.1.2-*.deb
must apt_get --error-on=any update
must apt_get --yes --only-upgrade install forebay
has 0.1.2
[ "$(find "$A/pool" -name '*.deb' | wc -l)" = 2 ] || fail "the older one is gone"

say "with another key, or when it was changed since, it is refused"
gpg --batch --armor --export theirs@example.org >"$R/etc/apt/keyrings/forebay.asc"
if apt_get --error-on=any update; then fail "apt takes a folder that is not signed by its key"; fi
grep -q 'NO_PUBKEY\|not signed' "$T/apt.out" || { cat "$T/apt.out"; fail "apt says something else"; }
cp "$A/forebay.asc" "$R/etc/apt/keyrings/forebay.asc"
rm -rf "$R"/var/lib/apt/lists
for list in "$A"/dists/stable/main/binary-*/Packages.gz "$A"/dists/stable/main/binary-*/by-hash/SHA256/*; do echo changed >"$list"; done
if apt_get --error-on=any update; then fail "apt takes a list that was changed after it was signed"; fi
folder "$A" "$T"/packages/forebay_0.1.2-*.deb
must apt_get --error-on=any update

say "what cannot be done is said"
refused 1 'no secret key
GNUPGHOME' "$ROOT/packaging/apt-folder" --key nobody "$A" "$T"/packages/forebay_0.1.2-*.deb
refused 1 'no Debian package' "$ROOT/packaging/apt-folder" --key ours@example.org "$A" "$ROOT/README.md"
cp "$T"/packages/forebay_0.1.1-*.deb "$T/other.deb"
mkdir "$T/other"
cp "$T/other.deb" "$T/other/$(basename "$T"/packages/forebay_0.1.2-*.deb)"
refused 1 'another package of this version' "$ROOT/packaging/apt-folder" --key ours@example.org "$A" "$T"/other/*.deb
refused 2 'apt-folder --key' "$ROOT/packaging/apt-folder" "$A"
exit 0

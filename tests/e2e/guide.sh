#!/usr/bin/env bash
# The guide (docs/operate) is right: every page is executed line by line, by tests/guide/execute.py, in a root of its own. Where the
# kernel has no ublk that is in a guest (tests/guest). PAGES="a.md b.md" names some of them; all are those with `<!-- guide:`.
. "$(dirname "$0")/root-lib.sh"
PAGES=${PAGES:-$(cd "$ROOT/docs/operate" && grep -l '^<!-- guide: ' -- *.md | tr '\n' ' ')}

if [ ! -e /dev/ublk-control ]; then
    "$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
    code=0
    "$ROOT/tests/guest/run" --limit "${GUEST_SECONDS:-290}" --memory 3G "$E2E/guide.sh" FOREBAY="$FOREBAY" READY_SECONDS=60 PAGES="$PAGES" || code=$?
    exit "$code"
fi

need dmsetup fio mkfs.ext4 setpriv
new_root
# The devices of this machine: those of the pages and of ublk are made while the pages run.
mount --rbind /dev "$R/dev"
ln -sfn /proc/self/fd /dev/fd
for number in 0:stdin 1:stdout 2:stderr; do ln -sfn "/proc/self/fd/${number%:*}" "/dev/${number#*:}"; done
mkdir -p "$R/run/udev"
FOREBAY=$FOREBAY DESTDIR=$R PREFIX=/usr "$ROOT/scripts/install" >/dev/null
in_root systemd-sysusers forebay.conf
in_root systemd-tmpfiles --create forebay.conf
in_root chown forebay: /etc/forebay/forebay.toml
cd "$ROOT/docs/operate"
# shellcheck disable=SC2086 # names of pages
in_root python3 "$ROOT/tests/guide/execute.py" $(printf "$ROOT/docs/operate/%s " $PAGES) || fail "a page is not as it says"

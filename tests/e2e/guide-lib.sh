# shellcheck shell=bash
# The guide (docs/operate) is right: its pages are executed line by line, by tests/guide/execute.py, in a root of their own. Where the
# kernel has no ublk that is in a guest (tests/guest). Sourced by the tests, each of which names some of the pages in PAGES; whoever
# sets PAGES in the environment executes these. A page that a test should execute, and none does, fails all of them.
. "$(dirname "${BASH_SOURCE[0]}")/root-lib.sh"

for page in $(cd "$ROOT/docs/operate" && grep -l '^<!-- guide: ' -- *.md); do
    grep -qw -- "${page%.md}" "$E2E"/guide-[!l]*.sh || fail "docs/operate/$page is executed by no test: name it in one of tests/e2e/guide-*.sh"
done

if [ ! -e /dev/ublk-control ]; then
    "$ROOT/tests/guest/setup" || skip "the guest cannot be made (tests/guest/setup says why)"
    code=0
    "$ROOT/tests/guest/run" --limit "${GUEST_SECONDS:-290}" --memory 2G "$0" FOREBAY="$FOREBAY" READY_SECONDS=60 PAGES="$PAGES" || code=$?
    exit "$code"
fi

need dmsetup fio mkfs.ext4 setpriv mariadbd
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
# shellcheck disable=SC2086 # names of pages
in_root python3 "$ROOT/tests/guide/execute.py" $(printf "$ROOT/docs/operate/%s.md " $PAGES) || fail "a page is not as it says"

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
new_system
# shellcheck disable=SC2086 # names of pages
in_root python3 "$ROOT/tests/guide/execute.py" $(printf "$ROOT/docs/operate/%s.md " $PAGES) || fail "a page is not as it says"

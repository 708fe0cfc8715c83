#!/usr/bin/env bash
# Caches that an older daemon left behind still open: `forebay check`, a start, every byte, writing back, an orderly stop, and
# `forebay check` once more. The archives, and how they are made: tests/golden-caches.
. "$(dirname "$0")/lib.sh"
need python3

TMPDIR=$T python3 "$ROOT/tests/golden-caches/golden.py" open "$FOREBAY" || fail "an old cache does not open as it was left"

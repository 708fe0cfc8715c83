#!/usr/bin/env bash
# The guide: a cache is changed while it is used (guide-lib.sh).
# Runs in a guest.
PAGES=${PAGES:-"upgrade maintenance replace-flash"}
. "$(dirname "$0")/guide-lib.sh"

#!/usr/bin/env bash
# The guide: a cache is changed, moved and taken away while it is used (guide-lib.sh).
PAGES=${PAGES:-"upgrade maintenance replace-flash take-away move-host"}
. "$(dirname "$0")/guide-lib.sh"

#!/usr/bin/env bash
# The guide: a cache is changed, moved and taken away while it is used (guide-lib.sh).
PAGES=${PAGES:-"maintenance replace-flash move-host take-away upgrade"}
. "$(dirname "$0")/guide-lib.sh"

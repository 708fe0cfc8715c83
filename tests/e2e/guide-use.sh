#!/usr/bin/env bash
# The guide: a cache is put before a disk, looked at and chosen (guide-lib.sh).
# Runs in a guest.
PAGES=${PAGES:-"attach-disk does-it-help advise databases what-if flash-life several-volumes"}
. "$(dirname "$0")/guide-lib.sh"

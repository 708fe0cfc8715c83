#!/usr/bin/env bash
# The guide: a cache is put before a disk, looked at and chosen (guide-lib.sh).
PAGES=${PAGES:-"attach-disk does-it-help advise several-volumes databases what-if flash-life"}
. "$(dirname "$0")/guide-lib.sh"

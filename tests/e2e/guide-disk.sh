#!/usr/bin/env bash
# The guide: the disk dies (guide-lib.sh).
# Runs in a guest.
PAGES=${PAGES:-"disk-died"}
. "$(dirname "$0")/guide-lib.sh"

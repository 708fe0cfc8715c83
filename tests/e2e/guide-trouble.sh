#!/usr/bin/env bash
# The guide: power and flash fail (guide-lib.sh).
# Runs in a guest.
PAGES=${PAGES:-"power-failed flash-died"}
. "$(dirname "$0")/guide-lib.sh"

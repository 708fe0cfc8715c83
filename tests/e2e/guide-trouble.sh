#!/usr/bin/env bash
# The guide: power, flash and disk fail (guide-lib.sh).
# Runs in a guest.
PAGES=${PAGES:-"power-failed flash-died disk-died"}
. "$(dirname "$0")/guide-lib.sh"

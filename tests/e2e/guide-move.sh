#!/usr/bin/env bash
# The guide: a cache is moved and taken away (guide-lib.sh).
# Runs in a guest.
PAGES=${PAGES:-"take-away move-host"}
. "$(dirname "$0")/guide-lib.sh"

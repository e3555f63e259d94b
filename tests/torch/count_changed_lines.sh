#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# count_changed_lines.sh A B LIMIT: fails if more than LIMIT lines differ between two files, removed
# and added lines counted alike, or if none does.
set -u
changed=$(diff "$1" "$2" | grep -c '^[<>]')
echo "$changed lines changed, at most $3 allowed"
[ "$changed" -ge 1 ] && [ "$changed" -le "$3" ]

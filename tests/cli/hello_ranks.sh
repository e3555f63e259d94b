#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The example over raw memory: ranks are processes, and settings come from the environment.
. "$(dirname "$0")/common.sh"
hello=$2
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN STRETTO_LINK STRETTO_METRICS

# all_right RANKS MEANS: each rank has printed the means of all three steps, and nobody complains
all_right() {
  local rank step
  for rank in $(seq 0 $(($1 - 1))); do
    for step in 0 1 2; do
      expect_text out "^\\[$rank\\] step $step: means $2, "
    done
  done
  [ ! -s "$folder/err" ] || { echo "FAILED: it complains"; cat "$folder/err"; failures=$((failures + 1)); }
}

expect_code 0 "$stretto" run -n 2 -- "$hello"
all_right 2 '0.5 and 10.5'
expect_code 0 "$stretto" run -n 3 --link 1gbit --metrics "$folder/steps" -- "$hello"
all_right 3 '1.0 and 11.0'
# 3 ranks and 3 steps, so that the settings have arrived: see docs/settings.md for the keys.
[ "$(grep -c '"exposed_ms"' "$folder/steps")" = 9 ] || { echo "FAILED: not 9 lines of metrics"; failures=$((failures + 1)); }

# Alone, without any launcher.
expect_code 0 "$hello"
expect_text out '^step 2: means 0.0 and 10.0, '

# What is wrong is said.
expect_code 1 env STRETTO_CHUNK=lots "$hello"
expect_text err "cannot read 'lots' as a size"
finish

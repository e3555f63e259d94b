#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# No rank outlives `run`, however that ends.
. "$(dirname "$0")/common.sh"

# start: runs 3 ranks in the background that note their process ids
start() {
  rm -f "$folder"/rank.*
  "$stretto" run -n 3 -- bash -c 'echo $$ > '"$folder"'/new.$RANK; mv '"$folder"'/new.$RANK '"$folder"'/rank.$RANK; exec sleep 300' \
    >"$folder/out" 2>"$folder/err" </dev/null &
  run=$!
  wait_for started
}
started() { [ "$(ls "$folder" | grep -c '^rank\.')" = 3 ]; }
all_gone() {
  local file
  for file in "$folder"/rank.*; do
    # A zombie that nobody has waited for yet is as good as gone.
    local state
    state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$(cat "$file")/status" 2>/dev/null)
    [ -z "$state" ] || [ "$state" = Z ] || return 1
  done
}
expect_end() {
  wait "$run" 2>/dev/null
  local code=$?
  if [ "$code" != "$1" ]; then
    echo "FAILED: run ended with $code instead of $1 ($2)"
    cat "$folder/err"
    failures=$((failures + 1))
  fi
  wait_for all_gone
}

start
kill -9 "$run"
expect_end 137 "killed"

start
kill -TERM "$run"
expect_end 143 "SIGTERM"

start
kill -INT "$run"
expect_end 130 "SIGINT"

# Ranks that do not care about the first signal are killed by the second.
rm -f "$folder"/rank.*
"$stretto" run -n 3 -- bash -c 'trap "" TERM; echo $$ > '"$folder"'/new.$RANK; mv '"$folder"'/new.$RANK '"$folder"'/rank.$RANK; while :; do sleep 1; done' \
  >"$folder/out" 2>"$folder/err" </dev/null &
run=$!
wait_for started
kill -TERM "$run"
sleep 0.3
kill -TERM "$run"
expect_end 143 "second SIGTERM"
finish

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

# Ranks that write without end, and whoever does not read them, keep `run` from nothing.
gone() { ! kill -0 "$run" 2>/dev/null; }
# expect_end_by_term: within 11 s, of which 10 are for ranks that do not care
expect_end_by_term() {
  local begin=$SECONDS
  kill -TERM "$run"
  wait_for gone || kill -9 "$run"
  expect_end 143 "$1"
  if [ $((SECONDS - begin)) -gt 11 ]; then
    echo "FAILED: run took $((SECONDS - begin)) s to end ($1)"
    failures=$((failures + 1))
  fi
}
says() { grep -q -e "$1" "$folder/err"; }

rm -f "$folder"/rank.*
"$stretto" run -n 3 -- bash -c '[ $RANK = 2 ] || exec yes; echo "a word" >&2; exec sleep 300' \
  >/dev/null 2>"$folder/err" </dev/null &
run=$!
wait_for says '^\[2\] a word$'
expect_end_by_term "ranks that write without end"

mkfifo "$folder/full"
sleep 300 <"$folder/full" &
reader=$!
"$stretto" run -n 2 -- bash -c '[ $RANK = 1 ] || exec yes; echo "a word" >&2; exit 7' \
  >"$folder/full" 2>"$folder/err" </dev/null &
run=$!
wait_for says '^\[1\] a word$'
wait_for says 'rank 1 ended with exit code 7'
expect_end_by_term "a reader that does not read"
kill "$reader"
finish

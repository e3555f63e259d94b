#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Three hosts; the link of one is taken down: all ranks end within 10 s and name who was lost.
# Needs root and iproute2 (network namespaces); skipped without.
. "$(dirname "$0")/../cli/common.sh"
rig=$(dirname "$0")/../../bench/rig/hosts.sh
unset STRETTO_EXCHANGE STRETTO_TOKEN STRETTO_TIMEOUT

export LAB_PREFIX=fd LAB_PORT=29561 LAB_LOG=$folder
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! "$rig" up 3 none 2>"$folder/rig"; then
  "$rig" down 2>/dev/null
  echo "SKIPPED: no network namespaces here: $(head -1 "$folder/rig" 2>/dev/null)"
  exit 77
fi
trap '"$rig" down; rm -rf "$folder"' EXIT

printf 'a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n' >"$folder/tiny.bk.log"

# Takes the link of host $1 down in the middle; every rank names another: who is cut off sees rank 0 go.
cut() {
  local victim=$(($1 - 1)) rank before
  least() { "$rig" counters 3 | sort -n | head -1; }
  before=$(least)
  "$rig" run 3 "$stretto" replay --profile "$folder/tiny.bk.log" --steps 100000 >"$folder/out" 2>&1 &
  local job=$!
  # The counters say when steps are under way.
  running() { [ $(($(least) - before)) -gt 30000000 ]; }
  wait_for running
  local began
  began=$(date +%s%N)
  ip -n "fd$1" link set "e$1" down
  wait "$job"
  local code=$? took=$((($(date +%s%N) - began) / 1000000))
  echo "link of rank $victim down: the last rank ended after $took ms"
  [ "$code" = 4 ] || { echo "FAILED: ended with $code instead of 4"; failures=$((failures + 1)); }
  [ "$took" -lt 10000 ] || { echo "FAILED: that is not within 10 s"; failures=$((failures + 1)); }
  for rank in 0 1 2; do
    cp "$folder/lab-rank$rank.err" "$folder/err"
    sed "s/^/[$rank] /" "$folder/err"
    if [ "$rank" = "$victim" ]; then
      expect_text err 'replay: .*rank [0-2] was lost: it has been silent'
    else
      expect_text err "replay: .*step [0-9]*, .*rank $victim was lost: it has been silent"
    fi
  done
  ip -n "fd$1" link set "e$1" up
}

cut 2
cut 1
finish

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two launchers, as on two hosts, whose ranks meet: one job of four ranks.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN
unset STRETTO_SCHEDULE STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_CODEC STRETTO_ORDER STRETTO_TRANSPORT STRETTO_TRACE STRETTO_LINK
profile=$folder/tiny.bk.log
printf 'a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n' >"$profile"
replay=("$stretto" replay --json --profile "$profile" --time-scale 1 --byte-scale 1 --warmup 1)

# both CODE0 CODE1 COMMAND...: a launcher for each host; their output is in out and err (rank 0's host), out.1 and err.1
both() {
  local node pids=() port files=("" ".1") want=("$1" "$2") got
  shift 2
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  for node in 1 0; do  # whoever comes first waits
    timeout --kill-after=5 100 "$stretto" run -n 2 --nnodes 2 --node-rank $node --master "127.0.0.1:$port" \
      -- "$@" >"$folder/out${files[node]}" 2>"$folder/err${files[node]}" </dev/null &
    pids[node]=$!
  done
  for node in 0 1; do
    wait "${pids[node]}"
    got=$?
    if [ "$got" != "${want[node]}" ]; then
      echo "FAILED: exit code $got instead of ${want[node]} on host $node: $*"
      cat "$folder/out${files[node]}" "$folder/err${files[node]}"
      failures=$((failures + 1))
    fi
  done
}

export STRETTO_TOKEN=secret
both 0 0 "${replay[@]}" --steps 4
expect_text out '^\[0\] {.*"ranks":4[,}]'
expect_text out '^\[0\] {.*"mismatches":0[,}]'
expect_text out '^\[0\] {.*"verified_steps":3[,}]'
expect_text out '^\[0\] {.*"exchange":"[^"]*owner.*"transport":"tcp"'
[ ! -s "$folder/out.1" ] && ! grep -q 'warning\|error' "$folder"/err* ||
  { echo "FAILED: an orderly job complains"; cat "$folder"/out.1 "$folder"/err*; failures=$((failures + 1)); }

# Memory is shared on one host only.
STRETTO_EXCHANGE=shared both 3 3 "${replay[@]}" --steps 4
expect_text err '^\[0\] .*one of 2 ranks on its host, of 4 in all'
expect_text err.1 '^\[3\] .*one of 2 ranks on its host, of 4 in all'

# A rank that dies is named on the other host, by its launcher with the signal.
STRETTO_FAULT=chunk.launched@9 STRETTO_FAULT_RANK=3 both 4 4 "${replay[@]}" --steps 100000
expect_text err '^\[0\] .*rank 3 was lost'
expect_text err.1 '^stretto run: rank 3 was killed by SIGKILL'

# Another token on the other host.
both 4 2 sh -c '[ "$RANK" -lt 2 ] || export STRETTO_TOKEN=other; export STRETTO_TIMEOUT=6s; exec "$@"' sh "${replay[@]}" --steps 4
expect_text err '^\[0\] .*rank 0 waited 6 s for ranks 2 and 3 of 4'
expect_text err.1 '^\[2\] .*has another token than rank 0'
finish

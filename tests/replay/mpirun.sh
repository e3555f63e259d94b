#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Replays that mpirun starts and whose gradients our own exchanges move: ranks find each other by mpirun's variables.
# mpirun.sh STRETTO WITH_MPIRUN MPIRUN
. "$(dirname "$0")/../cli/common.sh"
with_mpirun=$2 mpirun=$3
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN
unset STRETTO_SCHEDULE STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_CODEC STRETTO_ORDER STRETTO_TRANSPORT STRETTO_TRACE STRETTO_LINK
profile=$folder/tiny.bk.log
printf 'a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n' >"$profile"
replay=("$stretto" replay --json --profile "$profile" --time-scale 1 --byte-scale 1 --steps 4 --warmup 1)

# replay EXCHANGE: what is in use, and that every element of three steps is right
replay() {
  expect_code 0 "$with_mpirun" "$mpirun" 3 "${replay[@]}"
  expect_text out '^{.*"ranks":3[,}]'
  expect_text out '^{.*"mismatches":0[,}]'
  expect_text out '^{.*"verified_steps":3[,}]'
  expect_text out "^{.*\"exchange\":\"[^\"]*$1[^\"]*\",\"order\":\"rank\""
}
replay shared  # of itself, as mpirun says that all are on this host
STRETTO_EXCHANGE=owner STRETTO_TRANSPORT=tcp replay owner
expect_text out '^{.*"transport":"tcp"'
STRETTO_EXCHANGE=one-hop STRETTO_TRANSPORT=tcp STRETTO_SCHEDULE=sequential replay one-hop
finish

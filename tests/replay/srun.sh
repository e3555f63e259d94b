#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Replays that srun starts, under with_slurm.sh: ranks find each other by Slurm's variables alone.
# srun.sh STRETTO
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN
unset STRETTO_SCHEDULE STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_CODEC STRETTO_ORDER STRETTO_TRANSPORT STRETTO_TRACE STRETTO_LINK
profile=$folder/tiny.bk.log
printf 'a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n' >"$profile"
replay=("$stretto" replay --json --profile "$profile" --time-scale 1 --byte-scale 1 --warmup 1)
srun=(timeout --kill-after=5 100 srun --quiet --chdir="$folder")

# All ranks on one node read each other's gradients in place.
expect_code 0 "${srun[@]}" -n 3 "${replay[@]}" --steps 4
expect_text out '^{.*"ranks":3[,}]'
expect_text out '^{.*"mismatches":0[,}]'
expect_text out '^{.*"verified_steps":3[,}]'
expect_text out '^{.*"exchange":"shared"'

# As if every rank were on a host of its own: gradients go over TCP.
LOCAL_WORLD_SIZE=1 STRETTO_TOKEN=secret expect_code 0 "${srun[@]}" -n 4 "${replay[@]}" --steps 4
expect_text out '^{.*"ranks":4[,}]'
expect_text out '^{.*"mismatches":0[,}]'
expect_text out '^{.*"transport":"tcp"'

# A rank that is killed in a step: the others end by themselves and name it.
STRETTO_FAULT=chunk.launched@9 STRETTO_FAULT_RANK=1 expect_code 137 \
  "${srun[@]}" --kill-on-bad-exit=0 -n 2 "${replay[@]}" --steps 100000
expect_text err 'replay: .*rank 1 was lost'
expect_text err 'error: .*task 0: Exited with exit code 4'
expect_text err 'error: .*task 1: Killed'
finish

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A replay under mpirun whose gradients MPI adds: every element of three steps is right.
# mpi.sh STRETTO WITH_MPIRUN MPIRUN
. "$(dirname "$0")/../cli/common.sh"
with_mpirun=$2 mpirun=$3
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN
unset STRETTO_SCHEDULE STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_CODEC STRETTO_ORDER STRETTO_TRACE STRETTO_LINK
profile=$folder/tiny.bk.log
printf 'a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n' >"$profile"
replay=("$stretto" replay --json --profile "$profile" --time-scale 1 --byte-scale 1 --steps 4 --warmup 1)

for schedule in backward sequential; do
  expect_code 0 "$with_mpirun" "$mpirun" 3 "${replay[@]}" --exchange mpi --order any --schedule $schedule
  expect_text out '^{.*"mismatches":0[,}]'
  expect_text out '^{.*"verified_steps":3[,}]'
  expect_text out '^{.*"exchange":"mpi","order":"native"'
done

# A rank that is lost: all end, whether MPI is at work or waits for it to start.  Who ends first makes mpirun end the rest.
lost() {
  local began=$SECONDS code
  STRETTO_FAULT=$2 STRETTO_FAULT_RANK=1 "$with_mpirun" "$mpirun" 3 "${replay[@]}" --exchange mpi --order any \
    >"$folder/err" 2>&1 </dev/null
  code=$?
  [[ " $1 " == *" $code "* ]] || { echo "FAILED: $2: exit code $code instead of $1"; failures=$((failures + 1)); }
  expect_text err "$3"
  # Without an end of its own it is ended after 100 s.
  [ $((SECONDS - began)) -lt 60 ] || { echo "FAILED: $2: it took $((SECONDS - began)) s"; failures=$((failures + 1)); }
}
lost 4 chunk.launched@9:stop 'replay: step [0-9]*, waiting for .*rank 1 was lost: it has been silent'
lost 4 transport.connected@1:stop 'replay: .*rank 1 was lost: it has been silent'
lost 4 mpi.start@1:stop 'error: rank 1 was lost: it has been silent.*MPI is being started'
# mpirun sees a death at once, and may end the others before they have spoken.
lost '4 137' chunk.launched@9 'rank 1 was lost: \|rank 1 .*signal 9'

# An order of its own has to be allowed.
expect_code 2 "${replay[@]}" --exchange mpi
expect_text err 'the exchange mpi adds in an order of its own.*--order any'
# Ranks that MPI did not start, and an emulated link, get a reason.
expect_code 3 "$stretto" run -n 2 --exchange mpi --order any -- "${replay[@]}"
expect_text err 'MPI did not start this process; start the job with mpirun'
expect_code 3 "$stretto" run -n 2 --exchange mpi --order any --link 1gbit -- "${replay[@]}"
expect_text err 'do not pass through an emulated link'
expect_code 0 "$stretto" doctor
expect_text out '^MPI .*networks that you trust'
finish

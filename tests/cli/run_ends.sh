#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `run` gives its ranks, what it prints, and how it ends.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN OMP_NUM_THREADS MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_

expect_code 0 "$stretto" run -n 3 -- /bin/true
expect_code 1 "$stretto" run -n 2 -- /bin/false
expect_text err 'ended with exit code 1'
expect_code 3 "$stretto" run -n 2 -- ./no-such-program
expect_text err "cannot start './no-such-program': No such file"

expect_code 0 "$stretto" run -n 2 --link 1gbit --chunk 64k -- \
  sh -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $STRETTO_LINK $STRETTO_CHUNK ${#STRETTO_TOKEN}"'
expect_text out '^\[0\] 0 2 0 2 127.0.0.1 1 1gbit 64k 32$'
expect_text out '^\[1\] 1 2 1 2 127.0.0.1 1 1gbit 64k 32$'

expect_code 0 "$stretto" run -n 2 --nnodes 2 --node-rank 1 --master 10.0.0.1 -- \
  sh -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT"'
expect_text out '^\[0\] \|^\[2\] 2 4 0 10.0.0.1 29500$'
expect_text out '^\[3\] 3 4 1 10.0.0.1 29500$'

# Memory that a step frees stays for the next one, but for who has settings of his own.
expect_code 0 "$stretto" run -n 1 -- sh -c 'echo "$MALLOC_TRIM_THRESHOLD_ $MALLOC_MMAP_THRESHOLD_"'
expect_text out '^1073741824 1073741824$'
expect_code 0 env MALLOC_TRIM_THRESHOLD_=4096 "$stretto" run -n 1 -- \
  sh -c 'echo "$MALLOC_TRIM_THRESHOLD_ $MALLOC_MMAP_THRESHOLD_"'
expect_text out '^4096 $'

# The streams stay apart, and one rank's output is as it is.
expect_code 0 "$stretto" run -n 1 -- sh -c 'echo result; echo problem >&2'
expect_text out '^result$'
expect_text err '^problem$'
expect_code 0 "$stretto" run -n 2 --no-prefix -- sh -c 'echo result'
expect_text out '^result$'

# A killed rank is named with its signal, and the others are ended.
expect_code 4 "$stretto" run -n 3 -- sh -c 'if [ "$RANK" = 1 ]; then kill -9 $$; fi; sleep 60'
expect_text err 'rank 1 was killed by SIGKILL'
expect_text err 'ranks 0 and 2 still ran; sent SIGTERM'
expect_code 7 "$stretto" run -n 2 -- sh -c 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 1; exit 4'
expect_text err 'rank 1 ended with exit code 7; the other'
expect_code 4 "$stretto" run -n 2 -- sh -c 'exit 4'
finish

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# stretto bench convergence: a table or a document, and 1 if a codec is worse.
. "$(dirname "$0")/common.sh"

expect_code 0 "$stretto" bench convergence --codec fp16 --seeds 2 --steps 50
expect_text out '^float32 .*within$'
expect_text out '^fp16 .* 2\.0 .*within$'
expect_code 0 "$stretto" bench convergence --codec bf16 --seeds 2 --steps 50 -n 2 --json
expect_text out '"codec":"bf16"'
expect_text out '"accuracies":\[[0-9.]*,[0-9.]*\]'
# Without what it leaves out, a matrix of rank one is too little to learn from.
expect_code 1 "$stretto" bench convergence --codec powersgd:1:feedback=off --seeds 3 --steps 150
expect_text out '^powersgd:1:feedback=off .*worse$'
expect_code 2 "$stretto" bench convergence --codec nonsense
expect_text err "codec 'nonsense'"
expect_code 2 "$stretto" bench convergence --seeds 1
finish

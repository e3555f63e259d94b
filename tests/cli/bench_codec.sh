#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# stretto bench codec: a line for each codec with all keys, bounds that hold, and errors that name what is wrong.
. "$(dirname "$0")/common.sh"

expect_code 0 "$stretto" --json bench codec --size 1m --seconds 0
[ "$(wc -l <"$folder/out")" -ge 6 ] || { echo "FAILED: fewer lines than codecs"; failures=$((failures + 1)); }
while read -r line; do
  for key in codec encode_gbps decode_gbps memcpy_gbps ratio share touched_bytes_per_element limit_share max_error \
    bound_ok refused residual_ratio; do
    case $line in
      *"\"$key\":"*) ;;
      *) echo "FAILED: no $key in $line"; failures=$((failures + 1)) ;;
    esac
  done
  case $line in
    *'"bound_ok":true'*) ;;
    *) echo "FAILED: $line"; failures=$((failures + 1)) ;;
  esac
done <"$folder/out"

# Ratios are counted: a scale for each 256 elements is not free.
expect_code 0 "$stretto" --json bench codec --codec int8 --codec sign:feedback=off --size 1m --seconds 0
expect_text out '"codec":"int8".*"ratio":3.9'
expect_text out '"codec":"sign:feedback=off".*"ratio":28.4'
expect_text out '"codec":"sign:feedback=off".*"residual_ratio":0'
for dtype in float16 bfloat16; do
  expect_code 0 "$stretto" bench codec --codec int8 --size 1m --seconds 0 --dtype $dtype --distribution zeros
  expect_text out '^int8 '
done
expect_code 2 "$stretto" bench codec --codec int9 --size 1m
expect_text err "int9.*int8"
expect_code 2 "$stretto" bench codec --size nonsense
expect_code 2 "$stretto" bench codec --distribution flat
expect_code 2 "$stretto" bench codec --codec int8 --size 0
finish

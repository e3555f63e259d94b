#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./demo --help needs nothing of what ./demo needs, and leaves nothing behind.
. "$(dirname "$0")/common.sh"
mkdir "$folder/clone"
cp "$1" "$folder/clone/demo" # without tools/setup, nothing could be installed
for word in --help -h; do
  expect_code 0 "$folder/clone/demo" $word
  expect_text out '--model'
  [ "$(ls "$folder/clone")" = demo ] || { echo "FAILED: it made $(ls "$folder/clone")"; failures=$((failures + 1)); }
done
finish

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# In a container with 64 MB of /dev/shm, as Docker makes them, arenas of more than that work.
# Needs root and a mount namespace of its own; skipped without.
if [ "${2:-}" != inside ]; then
  if [ "$(id -u)" != 0 ] || ! unshare -m sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm' 2>/dev/null; then
    echo "SKIPPED: no mount namespaces here"
    exit 77
  fi
  exec unshare -m "$0" "$1" inside
fi
mount -t tmpfs -o size=64m tmpfs /dev/shm || exit 1
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN
unset STRETTO_SCHEDULE STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_ORDER STRETTO_TRANSPORT STRETTO_TRACE STRETTO_METRICS

# The limit is real.
expect_code 1 dd if=/dev/zero of=/dev/shm/full bs=1M count=70
rm -f /dev/shm/full

# 96 MB of gradients: each rank has two arenas of that.
printf 'a model of 96 MB\n1\n2\n500,48000000\n500,48000000\n' >"$folder/large.bk.log"
expect_code 0 "$stretto" run --no-prefix -n 2 --exchange shared -- \
  "$stretto" replay --json --profile "$folder/large.bk.log" --byte-scale 1 --steps 2 --warmup 1
expect_text out '^{.*"mismatches":0[,}]'
expect_text out '"gradient_mb":96[.,]'
expect_text out '"exchange":"[^"]*shared'
[ -z "$(ls -A /dev/shm)" ] || { echo "FAILED: left in /dev/shm:"; ls -A /dev/shm; failures=$((failures + 1)); }
finish

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Small replays: every element of three steps is right whatever the schedule, errors have their exit codes.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN
unset STRETTO_SCHEDULE STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_CODEC STRETTO_ORDER STRETTO_TRANSPORT STRETTO_TRACE

# A tiny model: a layer without time, one without bytes, one of several chunks.
profile=$folder/tiny.bk.log
printf 'a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n' >"$profile"

# expect_result KEY PATTERN: in rank 0's line of JSON
expect_result() { expect_text out "^{.*\"$1\":$2[,}]"; }

# replay RANKS OPTIONS...: all is verified, whatever the options, and nobody takes the end for a loss
replay() {
  local ranks=$1
  shift
  expect_code 0 "$stretto" run --no-prefix -n "$ranks" -- "$stretto" replay --json --profile "$profile" \
    --time-scale 1 --byte-scale 1 --steps 4 --warmup 1 "$@"
  expect_result mismatches 0
  expect_result verified_steps 3
  expect_result ranks "$ranks"
  if grep -q 'warning\|error' "$folder/err"; then
    echo "FAILED: an orderly run complains:"
    cat "$folder/err"
    failures=$((failures + 1))
  fi
  [ "$(wc -l <"$folder/out")" = 1 ] || { echo "FAILED: stdout is not one line"; failures=$((failures + 1)); }
}

replay 2
expect_result schedule '"backward"'
replay 3 --schedule sequential --seed 9
expect_result schedule '"sequential"'
replay 2 --per-parameter
expect_result per_parameter true
STRETTO_EXCHANGE=owner replay 2
expect_result exchange '"[^"]*owner[^"]*"'
replay 3 --exchange ring --order any
expect_result exchange '"ring"'
expect_result order '"native"'
for codec in fp16 bf16 int8 int4 sign signmaj topk:1% randomk:1% powersgd:4; do
  replay 3 --codec "$codec"
  expect_result codec "\"$codec\""
  expect_result exchange '"owner"'
done
replay 2 --codec int8 --exchange one-hop
replay 1 --codec sign
replay 1
expect_result order '"rank"'

# UCX, or one line that says what is missing.
if "$stretto" doctor | grep -q '^UCX .*built in;'; then
  STRETTO_EXCHANGE=owner STRETTO_TRANSPORT=ucx replay 2
  expect_result transport '"ucx"'
else
  expect_code 3 env STRETTO_TRANSPORT=ucx "$stretto" replay --profile "$profile" --steps 1
  expect_text err 'built without UCX; install libucx-dev'
fi

# slept_ms is at least compute_ms: 1.92 ms of backward and half as much of forward.
python3 - "$folder/out" <<'END' || failures=$((failures + 1))
import json, sys
result = json.load(open(sys.argv[1]))
assert abs(result["compute_ms"] - 2.88) < 1e-9, result["compute_ms"]
assert result["slept_ms"] >= result["compute_ms"], result
assert result["total_ms"] >= result["steps"] * result["slept_ms"], result
END

# Without --json it is for people.
expect_code 0 "$stretto" replay --profile "$profile" --time-scale 0 --byte-scale 0.01 --steps 1 --warmup 0
expect_text out '^median_ms  *[0-9]'

# Errors say what to do, each with its code.
expect_code 3 "$stretto" replay --profile "$folder/none"
expect_text err 'cannot read the profile .*none: No such file'
expect_code 2 "$stretto" replay --profile "$0"
expect_text err 'line 2'
expect_code 2 "$stretto" replay
expect_code 2 "$stretto" replay --profile "$profile" --steps 0
expect_code 2 "$stretto" replay --profile "$profile" --time-scale -1
expect_code 2 "$stretto" replay --profile "$profile" --byte-scale 1e6
expect_code 2 "$stretto" replay --profile "$profile" --schedule full
expect_text err "cannot read 'full' as a schedule"
expect_code 2 "$stretto" replay --profile "$profile" --codec int7
expect_text err "codec 'int7': there is no such codec; known are none, fp16, "
expect_code 2 "$stretto" replay --profile "$profile" --codec topk:101%
expect_text err "codec 'topk:101%': .*above 0 and up to 100%"
expect_code 2 "$stretto" replay --profile "$profile" --codec int8 --exchange ring --order any
expect_text err 'the exchange ring takes no codec; choose owner'
expect_code 2 "$stretto" replay --profile "$profile" --exchange ring
expect_text err 'STRETTO_ORDER=any (--order any)'
expect_code 2 "$stretto" run -n 2 -- sh -c 'exec "$0" replay --profile "$1" --steps $((2 + RANK))' "$stretto" "$profile"
expect_text err 'differ in profile, scales, steps or seed'

# A rank that dies is named by the others.
expect_code 4 "$stretto" run -n 2 -- sh -c \
  'if [ "$RANK" = 1 ]; then (sleep 2; kill -9 $$) & fi; exec "$0" replay --profile "$1" --steps 100000' "$stretto" "$profile"
expect_text err 'replay: .*rank 1'
finish

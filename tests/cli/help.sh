#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every command has a help with examples, and wrong command lines end with 2.
. "$(dirname "$0")/common.sh"

expect_code 0 "$stretto" --help
expect_text out 'Examples:'
expect_text out 'Exit codes'
commands=$("$stretto" --help | sed -n '/^Subcommands:/,/^$/p' | awk 'NR > 1 && /^  [a-z]/ {print $1}')
[ -n "$commands" ] || failures=$((failures + 1))
for command in $commands; do
  expect_code 0 "$stretto" "$command" --help
  expect_text out 'Examples:'
  expect_text out "^  stretto .*$command"
  # A command without examples of its own would show the program's.
  ! grep -q 'Exit codes' "$folder/out" || { echo "FAILED: $command has no examples"; failures=$((failures + 1)); }
done
expect_code 0 "$stretto" --version
expect_text out '^stretto [0-9]'
expect_code 2 "$stretto"
expect_code 2 "$stretto" nonsense
expect_code 2 "$stretto" run --nonsense -- true
expect_code 2 "$stretto" run -n 0 -- true
expect_code 2 "$stretto" run -n 2
expect_text err 'behind --'
expect_code 2 "$stretto" run --link 5 -- true
expect_text err "cannot read '5' as a link"
expect_code 2 "$stretto" run --nnodes 2 -- true
expect_text err '--master'

expect_code 0 "$stretto" doctor --settings
expect_text out '^kernels\|^processor'
expect_text out 'STRETTO_CHUNK .*(default)'
STRETTO_CHUNK=2m expect_code 0 "$stretto" doctor --settings
expect_text out 'STRETTO_CHUNK .*2m .*(environment)'
STRETTO_TOKEN=verysecret expect_code 0 "$stretto" doctor --settings
if grep -q verysecret "$folder/out"; then
  echo "FAILED: doctor prints the token"
  failures=$((failures + 1))
fi
STRETTO_LINK=7 expect_code 1 "$stretto" doctor
expect_text out "cannot read '7' as a link"
# doctor names the launchers that are on PATH, and those that are not.
mkdir "$folder/bin"
printf '#!/bin/sh\n' >"$folder/bin/srun"
chmod +x "$folder/bin/srun"
touch "$folder/bin/mpirun" # no program
expect_code 0 env PATH="$folder/bin" "$stretto" doctor
expect_text out "^srun  *$folder/bin/srun$"
expect_text out '^mpirun  *not found$'
expect_text out '^torchrun  *not found$'
expect_code 0 "$stretto" doctor --json
expect_text out '"findings"'
finish

# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of the program `stretto`, whose path is the first argument.
set -u
stretto=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# expect_code CODE COMMAND...: runs it, keeps its output in $folder/out and $folder/err
expect_code() {
  local want=$1
  shift
  "$@" >"$folder/out" 2>"$folder/err" </dev/null
  local got=$?
  if [ "$got" != "$want" ]; then
    echo "FAILED: exit code $got instead of $want: $*"
    cat "$folder/out" "$folder/err"
    failures=$((failures + 1))
  fi
}

# expect_text FILE PATTERN: some line of $folder/FILE matches
expect_text() {
  if ! grep -q -e "$2" "$folder/$1"; then
    echo "FAILED: nothing like '$2' in $1:"
    cat "$folder/$1"
    failures=$((failures + 1))
  fi
}

# wait_for COMMAND...: until it succeeds; fails after 30 s
wait_for() {
  local i
  for i in $(seq 300); do
    "$@" && return 0
    sleep 0.1
  done
  echo "FAILED: waited 30 s for: $*"
  failures=$((failures + 1))
  return 1
}

finish() {
  [ "$failures" = 0 ] && echo passed
  exit $((failures > 0))
}

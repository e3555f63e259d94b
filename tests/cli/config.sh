#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Settings of a file lie between what the code says and the environment; doctor says where each comes from.
. "$(dirname "$0")/common.sh"
unset RANK STRETTO_WINDOW STRETTO_EXCHANGE STRETTO_CHUNK STRETTO_LINK STRETTO_LOG STRETTO_TOKEN STRETTO_SCHEDULE STRETTO_PORTS STRETTO_REDUCTION_THREADS STRETTO_CODEC STRETTO_CODEC_RULES STRETTO_CODEC_MINIMUM STRETTO_CODEC_THREADS

file=$folder/job.toml
cat >"$file" <<'END'
# Settings of the job.
schedule = "sequential"
chunk = 65536             # a size may be a number
link = '500mbit,1ms'
log = "error"
reduction_threads = 2
token = "verysecret"
END

# doctor: every origin.
STRETTO_LINK=1gbit expect_code 0 "$stretto" doctor --settings --config "$file"
expect_text out "STRETTO_SCHEDULE .*sequential .*($file:2)"
expect_text out "STRETTO_CHUNK .*65536 .*($file:3)"
expect_text out 'STRETTO_LINK .*1gbit .*(environment)'
expect_text out "STRETTO_LOG .*error .*($file:5)"
expect_text out 'STRETTO_PORTS .*(default)'
expect_text out "STRETTO_TOKEN .*(set) .*($file:7)"
expect_code 0 "$stretto" --config "$file" --log-level info doctor --settings
expect_text out 'STRETTO_LOG .*info .*(command line)'
expect_code 0 "$stretto" --log-level info --config "$file" doctor --settings --json
expect_text out "\"origin\": \"$file:2\""
expect_text out '"origin": "command line"'

# The document names every variable, every key, and every option of run.
document=$(dirname "$0")/../../docs/settings.md
names=$("$stretto" doctor --settings --json | sed -n '/"settings"/,$s/.*"name": "\([A-Z_]*\)".*/\1/p')
names+=" "$("$stretto" run --help | grep -o '^  --[a-z-]*\|^  -n')
printf 'no_such_key = 1\n' >"$folder/wrong.toml"
keys=$("$stretto" --config "$folder/wrong.toml" doctor 2>&1 | sed -n 's/.*there are //p' | tr -d ,)
[ "$(wc -w <<<"$names $keys")" -gt 40 ] || { echo "FAILED: only these names: $names $keys"; failures=$((failures + 1)); }
for name in $names; do
  [ "$name" = --no-prefix ] || grep -q -e "^|.*[| ]$name[, |]" "$document" ||
    { echo "FAILED: docs/settings.md lacks $name"; failures=$((failures + 1)); }
done
for key in $keys; do
  grep -q -e "^|.*| $key |$" "$document" || { echo "FAILED: docs/settings.md lacks the key $key"; failures=$((failures + 1)); }
done

# run: the ranks' environment, below what is set and below run's own options.
show='echo "$STRETTO_SCHEDULE $STRETTO_CHUNK $STRETTO_LINK $STRETTO_REDUCTION_THREADS $STRETTO_TOKEN"'
STRETTO_CHUNK=2m expect_code 0 "$stretto" run --config "$file" --link 1gbit -- sh -c "$show"
expect_text out '^sequential 2m 1gbit 2 verysecret$'
STRETTO_CHUNK= expect_code 0 "$stretto" run -n 2 --config "$file" --no-prefix -- sh -c "$show"
expect_text out '^sequential 65536 500mbit,1ms 2 verysecret$'

# Other commands read the same.
printf 'exchange = "owner"\n' >"$file"
expect_code 0 "$stretto" bench allreduce --json --quiet --sizes 4096 --config "$file"
expect_text out '"exchange":"owner'

# What doctor shows as a default may be written down, in a file and in the environment.
printf 'window = "auto"\nexchange = "owner"\n' >"$file"
expect_code 0 "$stretto" bench allreduce --json --quiet --sizes 4096 --config "$file"
expect_code 0 env STRETTO_WINDOW=auto STRETTO_EXCHANGE=owner "$stretto" bench allreduce --json --quiet --sizes 4096

# A level that there is not would else be heard of by nobody.
expect_code 2 env STRETTO_LOG=loud "$stretto" run -- sh -c 'echo started'
expect_text err "STRETTO_LOG: there is no level 'loud'; choose debug, info, warning, error or off"
expect_code 1 env STRETTO_LOG=loud "$stretto" doctor
expect_text out 'choose debug, info, warning, error or off'

# What is wrong is named before anything starts; the words are in tests/golden/errors.
for line in 'shedule = "backward"' 'ports = 70000' 'ports = "5"' 'schedule = "full"' 'transport = "pigeon"' \
  'chunk = 5' 'reduction_threads = 65' 'window = "wide"' 'log = "loud"' 'codec = "int7"' 'codec = "topk:0%"' 'codec_rules = "x"' 'timeout = 60' 'master_addr = "x"' '[run]'; do
  printf '\n%s\n' "$line" >"$file"
  expect_code 2 "$stretto" run --config "$file" -- sh -c 'echo started'
  expect_text err "^stretto: $file:2: "
  [ "$(wc -l <"$folder/err")" = 1 ] && [ ! -s "$folder/out" ] ||
    { echo "FAILED: not one line for: $line"; cat "$folder/err" "$folder/out"; failures=$((failures + 1)); }
done
expect_code 2 "$stretto" doctor --config "$folder/none.toml"
expect_text err 'cannot read the configuration file .*none.toml: No such file'
finish

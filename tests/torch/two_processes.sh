#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# two_processes.sh ALONE TOGETHER FASHION_MNIST: the examples for real, as two processes over
# sockets.  Checks that replicas end equal and that what should change their weights does.
set -u
alone=$1 together=$2 fashion=$3
[ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# A port that nobody listens on just now.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# two NAME COMMAND...: both ranks; their output goes to NAME.0 and NAME.1.
two() {
  local name=$1 rank code=0 pids=()
  shift
  local port
  port=$(free_port)
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$port timeout 120 "$@" >"$folder/$name.$rank" 2>"$folder/$name.$rank.err" &
    pids+=($!)
  done
  for rank in 0 1; do
    wait "${pids[$rank]}" || code=$?
  done
  if [ $code -ne 0 ]; then
    echo "FAILED with $code: $name"
    tail -n 5 "$folder/$name".*
    failures=$((failures + 1))
  fi
}

# Nobody takes the others' end for a loss.
quiet() {
  ! grep -h 'stretto: .*\(warning\|error\)' "$folder/$1".*.err
}

hash_of() { sed -n "s/^weights of rank $2 ($3): //p" "$folder/$1.$2"; }

# check WHAT TEST...: one line per check.
check() {
  local what=$1
  shift
  if test "$@"; then
    echo "ok: $what"
  else
    echo "FAILED: $what ($*)"
    failures=$((failures + 1))
  fi
}

check "alone prints its loss" -n "$("$alone" | grep '^final loss [0-9.]*$')"
# The last step of rank 1 takes longer: rank 0 is at the end before it.
STRETTO_FAULT=step.between@200:delay=300ms STRETTO_FAULT_RANK=1 two together "$together"
check "together prints its loss" -n "$(grep '^final loss [0-9.]*$' "$folder/together.0")"
check "together ends without a complaint" "$(quiet together && echo yes)" = yes
# All have agreed that it is over, and rank 0 is gone before rank 1 has closed.
STRETTO_FAULT=engine.close@1:delay=300ms STRETTO_FAULT_RANK=1 two closing "$together"
check "nor does it while it closes" "$(quiet closing && echo yes)" = yes

small="--steps 12 --batch 8 --test 200 --hash"
two plain "$fashion" $small --compare-sequential
plain=$(hash_of plain 0 backward)
check "a hash" -n "$plain"
check "ranks agree" "$plain" = "$(hash_of plain 1 backward)"
check "training ends without a complaint" "$(quiet plain && echo yes)" = yes
check "the sequential schedule gives the same bits" "$plain" = "$(hash_of plain 0 sequential)"
STRETTO_TRANSPORT=tcp STRETTO_EXCHANGE=owner STRETTO_CHUNK=64k STRETTO_LINK=1gbit \
  two link "$fashion" $small
check "over a link too" "$(quiet link && echo yes)" = yes
check "an emulated link and small chunks give the same bits" "$plain" = "$(hash_of link 0 backward)"
two seed "$fashion" $small --seed 2
check "another seed gives other bits" "$plain" != "$(hash_of seed 0 backward)"
two without "$fashion" $small --no-exchange
check "without the exchange ranks part" "$(hash_of without 0 alone)" != "$(hash_of without 1 alone)"

# A run in two halves, with momentum, ends where the whole one does.
two half "$fashion" --steps 5 --batch 8 --test 0 --checkpoint "$folder/c"
two rest "$fashion" $small --checkpoint "$folder/c" --resume
check "a resumed run gives the same bits" "$plain" = "$(hash_of rest 1 backward)"

two norm "$fashion" --model resnet18 --steps 2 --batch 2 --hash
check "batch norm: ranks agree" "$(hash_of norm 0 backward)" = "$(hash_of norm 1 backward)"

"$fashion" --data /no/such/folder >/dev/null 2>"$folder/missing"
check "a missing dataset ends with 3" $? -eq 3
check "and says what to install" -n "$(grep dataset-fashion-mnist "$folder/missing")"
"$fashion" --model vgg >/dev/null 2>&1
check "a wrong option ends with 2" $? -eq 2

[ $failures -eq 0 ]

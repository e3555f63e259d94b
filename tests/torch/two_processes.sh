#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# two_processes.sh ALONE TOGETHER FASHION_MNIST STRETTO: the examples for real, as two processes over
# sockets.  Checks that replicas end equal and that what should change their weights does.
set -u
alone=$1 together=$2 fashion=$3 stretto=$4
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
check "on both ranks" "$(hash_of seed 0 backward)" = "$(hash_of seed 1 backward)"
two flipped "$fashion" $small --flip-bit
check "one flipped bit gives other bits" "$plain" != "$(hash_of flipped 0 backward)"
check "on both ranks" "$(hash_of flipped 0 backward)" = "$(hash_of flipped 1 backward)"
two without "$fashion" $small --no-exchange
check "without the exchange ranks part" "$(hash_of without 0 alone)" != "$(hash_of without 1 alone)"

# Whatever moves the gradients, and however: a net of 23 MB, so that each chunk size cuts it otherwise.
# Reading all pictures would take longer than the steps.
python3 - /usr/share/datasets/fashion-mnist "$folder/few" <<'END'
import gzip, os, struct, sys
source, target = sys.argv[1:]
os.mkdir(target)
for name in os.listdir(source):
    if name.endswith(".gz"):
        with gzip.open(os.path.join(source, name)) as file:
            words = 4 if "images" in name else 2  # magic, count, and of pictures rows and columns
            head = list(struct.unpack(f">{words}I", file.read(4 * words)))
            head[1] = 200
            body = file.read(200 * (784 if words == 4 else 1))
        with gzip.open(os.path.join(target, name), "wb", 1) as file:
            file.write(struct.pack(f">{words}I", *head) + body)
END
few="--model mlp --steps 3 --batch 4 --test 0 --hash --data $folder/few"
same() {
  local name=$1 schedule=${STRETTO_SCHEDULE:-backward} rank
  two "$name" "$fashion" $few
  check "$name ends without a complaint" "$(quiet "$name" && echo yes)" = yes
  for rank in 0 1; do
    check "$name gives rank $rank the same bits" "$mlp" = "$(hash_of "$name" $rank "$schedule")"
  done
}
two mlp "$fashion" $few
mlp=$(hash_of mlp 0 backward)
check "a hash of the large net" -n "$mlp"
transports="tcp ucx"
"$stretto" doctor | grep -q '^UCX .*built in;' || { transports=tcp; echo "without ucx, which is not built in"; }
schedules=(sequential backward) numbers=(1 3) i=0
for exchange in owner one-hop shared; do
  for transport in $transports; do
    [ "$exchange-$transport" != shared-ucx ] || continue  # it uses no transport
    for chunk in 64k 1m 4m; do
      schedule=${schedules[i % 2]} threads=${numbers[i / 2 % 2]}
      i=$((i + 1))
      STRETTO_EXCHANGE=$exchange STRETTO_TRANSPORT=$transport STRETTO_CHUNK=$chunk STRETTO_SCHEDULE=$schedule \
        STRETTO_REDUCTION_THREADS=$threads same "$exchange-$transport-$chunk-$schedule-${threads}threads"
    done
  done
done
targets=$(STRETTO_TARGET=none "$stretto" doctor 2>&1 >/dev/null | sed -n 's/.*there are //p')
check "this processor has instruction sets" -n "$targets"
for target in $targets; do
  STRETTO_TARGET=$target STRETTO_EXCHANGE=owner same "$target"
done

# A run in two halves, with momentum, ends where the whole one does.
two half "$fashion" --steps 5 --batch 8 --test 0 --checkpoint "$folder/c"
two rest "$fashion" $small --checkpoint "$folder/c" --resume
check "a resumed run gives the same bits" "$plain" = "$(hash_of rest 1 backward)"

# With a codec too: what it keeps lies beside the checkpoint, a file for each rank.
for codec in sign topk:1% powersgd:4; do
  STRETTO_CODEC=$codec two coded "$fashion" $small
  coded=$(hash_of coded 0 backward)
  check "$codec: ranks agree" "$coded" = "$(hash_of coded 1 backward)"
  check "$codec: other bits than without" "$coded" != "$plain"
  rm -f "$folder"/saved*
  STRETTO_CODEC=$codec two half "$fashion" --steps 5 --batch 8 --test 0 --checkpoint "$folder/saved"
  STRETTO_CODEC=$codec two rest "$fashion" $small --checkpoint "$folder/saved" --resume
  check "$codec: a resumed run gives the same bits" "$coded" = "$(hash_of rest 1 backward)"
done
STRETTO_CODEC=topk:1%:momentum=0.9 "$stretto" run -n 2 -- "$fashion" $small >/dev/null 2>"$folder/twice"
check "two momentums are refused by name" -n "$(grep 'the optimizer SGD has one too' "$folder/twice")"
STRETTO_CODEC=topk:1%:momentum=0.9 two once "$fashion" $small --momentum 0
check "a codec may keep the momentum" "$(hash_of once 0 backward)" = "$(hash_of once 1 backward)"

two norm "$fashion" --model resnet18 --steps 2 --batch 2 --hash
check "batch norm: ranks agree" "$(hash_of norm 0 backward)" = "$(hash_of norm 1 backward)"

"$fashion" --data /no/such/folder >/dev/null 2>"$folder/missing"
check "a missing dataset ends with 3" $? -eq 3
check "and says what to install" -n "$(grep dataset-fashion-mnist "$folder/missing")"
"$fashion" --model vgg >/dev/null 2>&1
check "a wrong option ends with 2" $? -eq 2

[ $failures -eq 0 ]

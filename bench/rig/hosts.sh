#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Test hosts on one machine: N network namespaces h1..hN on a bridge, each link shaped in both directions.
#
#   hosts.sh up N RATE           e.g. hosts.sh up 4 500mbit   (RATE "none" leaves the links unshaped)
#   hosts.sh run N CMD [ARG...]  runs CMD once in every host, as rank 0..N-1, with the variables of torchrun set;
#                                shows rank 0's output, the others' goes to lab-rankR.log, all errors to lab-rankR.err
#   hosts.sh goodput             bytes per second that iperf3 moves from h1 to h2 (2 s, median of three)
#   hosts.sh counters N          bytes sent by h1..hN so far, one number a line
#   hosts.sh down                removes them all
#
# Needs root, iproute2, and iperf3 for goodput.  Variables:
#   LAB_QUEUE=20ms        each port's buffer; 3ms is a shallow switch, where several senders to one receiver lose packets
#   LAB_CONGESTION=cubic  set on the routes, whatever the machine's default is
#   LAB_MTU=9000          with 1500 two cores carry 4 x 350 Mbit/s, with 9000 4 x 900
#   LAB_PREFIX=h LAB_PORT=29555 LAB_LOG=/tmp
set -u
prefix=${LAB_PREFIX:-h}
switch=${prefix}sw
logs=${LAB_LOG:-/tmp}

# A small burst, so that no part of a gradient travels for free.
shape() { ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$3" burst 64kb latency "${LAB_QUEUE:-20ms}"; }

up() {
  local hosts=$1 rate=$2 mtu=${LAB_MTU:-9000} i host
  ip netns add "$switch" && ip -n "$switch" link add br0 type bridge || return 1
  ip -n "$switch" link set br0 mtu "$mtu" up || return 1
  for i in $(seq 1 "$hosts"); do
    host=$prefix$i
    ip netns add "$host" && ip link add "e$i" netns "$host" type veth peer name "p$i" netns "$switch" || return 1
    ip -n "$host" addr add "10.77.0.$i/24" dev "e$i"
    ip -n "$host" link set lo up
    ip -n "$host" link set "e$i" mtu "$mtu" up
    ip -n "$host" route change 10.77.0.0/24 dev "e$i" proto kernel scope link src "10.77.0.$i" \
      congctl "${LAB_CONGESTION:-cubic}"
    ip -n "$switch" link set "p$i" master br0
    ip -n "$switch" link set "p$i" mtu "$mtu" up
    [ "$rate" = none ] || { shape "$host" "e$i" "$rate" && shape "$switch" "p$i" "$rate"; } || return 1
  done
}

# UCX and Open MPI would pass bytes through shared memory, beside the links, if they were not told.
run() {
  local hosts=$1 i rank code=0 pids=()
  shift
  for i in $(seq 1 "$hosts"); do
    rank=$((i - 1))
    if [ $rank -gt 0 ]; then exec 3>"$logs/lab-rank$rank.log"; else exec 3>&1; fi
    ip netns exec "$prefix$i" env RANK=$rank WORLD_SIZE="$hosts" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
      MASTER_ADDR=10.77.0.1 MASTER_PORT="${LAB_PORT:-29555}" GLOO_SOCKET_IFNAME="e$i" UCX_NET_DEVICES="e$i" \
      UCX_TLS=tcp OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1 OMP_NUM_THREADS=1 "$@" >&3 2>"$logs/lab-rank$rank.err" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || code=$?; done
  return $code
}

goodput() {
  for _ in 1 2 3; do
    ip netns exec "${prefix}2" iperf3 -s -1 -D
    sleep 0.5
    ip netns exec "${prefix}1" iperf3 -c 10.77.0.2 -t 2 -J | sed -n '/"sum_received"/,/}/p' |
      awk -F'[:,]' '/bits_per_second/ {printf "%.0f\n", $2 / 8}'
  done | sort -n | sed -n 2p
}

counters() {
  for i in $(seq 1 "$1"); do ip netns exec "$prefix$i" cat "/sys/class/net/e$i/statistics/tx_bytes"; done
}

down() {
  ip netns list | awk '{print $1}' | grep -E "^${prefix}([0-9]+|sw)$" | xargs -r -n 1 ip netns del
}

case ${1:-} in
  up | run | goodput | counters | down) "$@" ;;
  *) sed -n 's/^# \?//p' "$0" | sed 1d >&2; exit 2 ;;
esac

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# with_slurm.sh COMMAND...: makes this machine a Slurm cluster of one node, with daemons of its own in a folder that goes
# away again, and runs the command, for which srun works then.  Nothing of the machine's own Slurm is read or touched.
# Ends with the command's code; with 77 if Slurm is not installed (tools/setup slurm) or one is not root, as slurmd has to be.
set -u
PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd srun scontrol; do
  command -v "$program" >/dev/null || { echo "no $program: tools/setup slurm installs it"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "slurmd has to be started by root"; exit 77; }

folder=$(mktemp -d)
chmod 755 "$folder"  # the socket in it is for all
daemons=()
# Whether a step still has its slurmstepd, which is no child of ours.
step_is_there() {
  local pid
  for pid in $(pgrep -x slurmstepd); do
    ! { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -qxF "SLURM_CONF=$SLURM_CONF" || return 0
  done
  return 1
}
stop() {
  local pid i
  # What the command left running goes first; ten seconds are more than it needs.
  if [ ${#daemons[@]} = 3 ]; then
    scancel --quiet --user=root
    for ((i = 0; i < 100; i++)); do
      step_is_there || break
      sleep 0.1
    done
  fi
  # The last first: a node's daemon says goodbye to the controller.
  for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
    pid=${daemons[i]}
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  rm -rf "$folder"
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# start NAME COMMAND...: in the background, until stop.
start() {
  local name=$1
  shift
  "$@" >"$folder/$name.out" 2>&1 </dev/null &
  daemons+=($!)
}
give_up() {
  echo "FAILED: $1"
  tail -n 20 "$folder"/*.out
  exit 1
}

# Two ports that nobody listens on just now.
mapfile -t ports < <(python3 -c '
import socket
all = [socket.socket() for _ in range(2)]
for s in all: s.bind(("127.0.0.1", 0))
for s in all: print(s.getsockname()[1])')

dd if=/dev/urandom of="$folder/munge.key" bs=64 count=1 status=none
chmod 400 "$folder/munge.key"
start munged munged --foreground --num-threads=2 --socket="$folder/munge" --key-file="$folder/munge.key" \
  --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed"

# The node says that it has four cores: tests have more ranks than a small machine has cores.  Its name resolves
# everywhere, for ranks look for rank 0 there.  (Debian's Slurm cannot be several nodes of one machine.)
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=localhost NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=4 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
# None is used, but slurmd wants a plugin, and the other one needs systemd.
printf 'CgroupPlugin=cgroup/v1\n' >"$folder/cgroup.conf"
mkdir "$folder/state" "$folder/spool"
export SLURM_CONF=$folder/slurm.conf
start slurmctld slurmctld -D -f "$SLURM_CONF"
start slurmd slurmd -D -N localhost -f "$SLURM_CONF"

# Until the node is there; a minute is more than they ever need.
for ((i = 0; ; i++)); do
  scontrol show node 2>/dev/null | grep -q 'State=IDLE ' && break
  [ $i -lt 300 ] || give_up "the node did not come up"
  for pid in "${daemons[@]}"; do
    kill -0 "$pid" 2>/dev/null || give_up "a daemon of Slurm ended"
  done
  sleep 0.2
done
"$@"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# with_mpirun.sh MPIRUN RANKS PROGRAM ARGUMENTS...: starts ranks on this host, which meet at a free port.
set -u
mpirun=$1 ranks=$2
shift 2
options=(-n "$ranks")
if "$mpirun" --version 2>/dev/null | grep -q 'Open MPI\|open-mpi'; then
  options+=(--oversubscribe --allow-run-as-root)
  # Ranks that share a core let each other run; no interface is asked for on one host.
  export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])') || exit 1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
exec timeout --kill-after=5 100 "$mpirun" "${options[@]}" "$@"

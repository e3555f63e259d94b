#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of the peers, one JSON line per size on rank 0: in place, float32, barrier before each, slowest rank counts.

  bench/rig/hosts.sh run N /usr/bin/python3 bench/peers/allreduce_peers.py gloo     (python3-torch)
  mpirun -n N /usr/bin/python3 bench/peers/allreduce_peers.py mpi                   (python3-mpi4py; Open MPI)
  mpirun --mca btl_vader_single_copy_mechanism none -n N ...               (its other setting)

Gloo reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.  Memory is allocated and touched once.  The figure is the
median over the repetitions of the slowest rank's time; busbw as nccl-tests define it.
"""
import json
import sys
import time

import numpy as np

which = sys.argv[1]
if which == "gloo":
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, version = dist.get_rank(), dist.get_world_size(), "gloo in torch " + torch.__version__
    buffer = lambda n: torch.ones(n)
    reduce, barrier = dist.all_reduce, dist.barrier

    def slowest(times):
        t = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return t.tolist()
else:
    from mpi4py import MPI

    c = MPI.COMM_WORLD
    rank, world, version = c.rank, c.size, MPI.Get_library_version().split(",")[0]
    buffer = lambda n: np.ones(n, np.float32)
    reduce, barrier = lambda x: c.Allreduce(MPI.IN_PLACE, x), c.Barrier

    def slowest(times):
        out = np.zeros(len(times))
        c.Allreduce(np.array(times), out, op=MPI.MAX)
        return out.tolist()

for size in [1 << k for k in (10, 14, 16, 18, 20, 22, 24, 26)]:
    x = buffer(size // 4)
    repetitions = max(9, min(300, int(2e8 // size)))
    for _ in range(5):
        reduce(x)
    times = []
    for _ in range(repetitions):
        barrier()
        start = time.perf_counter()
        reduce(x)
        times.append(time.perf_counter() - start)
    median = sorted(slowest(times))[repetitions // 2]
    if rank == 0:
        print(json.dumps({"peer": version, "ranks": world, "bytes": size, "median_us": 1e6 * median,
                          "busbw_gbps": size * 2 * (world - 1) / world / median / 1e9}), flush=True)

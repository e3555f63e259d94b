#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP (Gloo) under a replayed profile: the peer to beat.

Every layer of the profile is an autograd Function that sleeps for the layer's
forward and backward time and owns a parameter of the layer's size, so DDP's own
hooks, buckets and all-reduce run unchanged while the processor stays free, as it
is while an accelerator computes.  Prints one JSON line on rank 0.

  bench/rig/hosts.sh run 4 /usr/bin/python3 bench/peers/ddp_replay.py --profile bench/profiles/resnet50.bk.log --byte-scale 0.15

One process per rank with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set (hosts.sh does this).  Needs python3-torch.
Its virtual accelerator may catch up 5 ms after a late wake-up; that of `stretto replay` never does.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--profile", required=True)
ap.add_argument("--time-scale", type=float, default=4.0, help="multiply every compute time")
ap.add_argument("--byte-scale", type=float, default=0.3, help="multiply every gradient size")
ap.add_argument("--forward-ratio", type=float, default=0.5, help="forward time / backward time")
ap.add_argument("--mode", default="ddp", choices=["ddp", "sequential", "local", "fp16", "powersgd"])
ap.add_argument("--bucket-mb", type=float, default=25)
ap.add_argument("--steps", type=int, default=12)
ap.add_argument("--warmup", type=int, default=4)
a = ap.parse_args()

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.set_num_threads(1)
torch.manual_seed(0)

# profile: first line words, then number of batches, number of layers, then
# "microseconds since the previous layer,bytes", output layer first
rows = [l.split(",") for l in open(a.profile).read().split("\n")[3:] if "," in l]
layers = [(float(us) * 1e-6 * a.time_scale, max(1, int(float(b) * a.byte_scale / 4))) for us, b in rows][::-1]
B = sum(t for t, _ in layers)
F = B * a.forward_ratio
clock = {"t": 0.0}


def busy(seconds):
    """Advance the virtual accelerator: sleep to an absolute time, so errors do not add up."""
    now = time.perf_counter()
    late = clock["t"] < now - 0.005
    clock["t"] = (now if late else clock["t"]) + seconds
    left = clock["t"] - time.perf_counter()
    if left > 5e-5:
        time.sleep(left)


class Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, fwd, bwd, grad):
        busy(fwd)
        ctx.bwd, ctx.g = bwd, grad
        return x + 0

    @staticmethod
    def backward(ctx, gx):
        busy(ctx.bwd)
        return gx, ctx.g, None, None, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.zeros(n)) for _, n in layers])
        self.g = [torch.randn(n) for _, n in layers]

    def forward(self, x):
        for w, g, (t, _) in zip(self.w, self.g, layers):
            x = Timed.apply(x, w, t * a.forward_ratio, t, g)
        return x


net = Net()
nbytes = 4 * sum(n for _, n in layers)
if a.mode != "local":
    dist.init_process_group("gloo")
model = net
if a.mode in ("ddp", "fp16", "powersgd"):
    model = DDP(net, bucket_cap_mb=a.bucket_mb, gradient_as_bucket_view=True)
    if a.mode == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if a.mode == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as ps
        model.register_comm_hook(ps.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2), ps.powerSGD_hook)
flat = torch.zeros(nbytes // 4) if a.mode == "sequential" else None

times = []
for i in range(a.warmup + a.steps):
    if a.mode != "local":
        dist.barrier()
    t0 = time.perf_counter()
    model.zero_grad(set_to_none=False)
    model(torch.zeros(1, requires_grad=True)).sum().backward()
    if a.mode == "sequential":
        dist.all_reduce(flat)
    if i >= a.warmup:
        times.append(time.perf_counter() - t0)
times.sort()
if rank == 0:
    print(json.dumps({"peer": f"torch-{torch.__version__}-{a.mode}", "profile": os.path.basename(a.profile), "ranks": world,
                      "bucket_mb": a.bucket_mb, "gradient_mb": nbytes / 1e6, "compute_ms": 1e3 * (F + B),
                      "median_ms": 1e3 * times[len(times) // 2], "min_ms": 1e3 * times[0], "max_ms": 1e3 * times[-1]}), flush=True)
if a.mode != "local":
    dist.barrier()
    dist.destroy_process_group()

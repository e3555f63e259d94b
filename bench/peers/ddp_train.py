#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP (Gloo) training ResNet-18 or an MLP on Fashion-MNIST, or a small character transformer on text: the live peer.

  bench/rig/hosts.sh run 2 /usr/bin/python3 bench/peers/ddp_train.py --model resnet18 --bucket-mb 4

One process per rank with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set (hosts.sh does this).  Needs python3-torch,
libopenblas0-pthread, dataset-fashion-mnist; --text FILE for the transformer.  Prints one JSON line on rank 0.
"""
import argparse
import gzip
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--model", default="resnet18", choices=["resnet18", "mlp", "transformer"])
ap.add_argument("--mode", default="ddp", choices=["ddp", "fp16", "powersgd", "local"])
ap.add_argument("--bucket-mb", type=float, default=25)
ap.add_argument("--batch", type=int, default=16, help="per rank")
ap.add_argument("--steps", type=int, default=20)
ap.add_argument("--warmup", type=int, default=4)
ap.add_argument("--lr", type=float, default=0.02)
ap.add_argument("--text", default="", help="any text file of a megabyte or more")
ap.add_argument("--test", type=int, default=0, help="test images to evaluate at the end")
a = ap.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.set_num_threads(1)
torch.manual_seed(0)
DATA = "/usr/share/datasets/fashion-mnist/"


def read(name, offset):
    with gzip.open(DATA + name) as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


def images(name):
    return torch.from_numpy(read(name, 16).reshape(-1, 1, 28, 28).copy()).float() / 255 - 0.5


def labels(name):
    return torch.from_numpy(read(name, 8).astype(np.int64))


if a.model != "transformer":
    X, Y = images("train-images-idx3-ubyte.gz"), labels("train-labels-idx1-ubyte.gz")
else:
    with open(a.text, "rb") as file:
        text = torch.from_numpy(np.frombuffer(file.read(), np.uint8).astype(np.int64))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.c2, self.b2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.short(x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        shapes = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
        self.l, self.f = nn.Sequential(*(Block(*shape) for shape in shapes)), nn.Linear(512, 10)

    def forward(self, x):
        return self.f(self.l(F.relu(self.b(self.c(x)))).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self, width=256, layers=6, length=128):
        super().__init__()
        self.e, self.p, self.h = nn.Embedding(256, width), nn.Parameter(torch.zeros(1, length, width)), nn.Linear(width, 256)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.b = nn.TransformerEncoder(layer, layers)
        self.m = torch.triu(torch.full((length, length), float("-inf")), 1)

    def forward(self, x):
        return self.h(self.b(self.e(x) + self.p, self.m)).transpose(1, 2)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


net = {"transformer": Transformer, "resnet18": ResNet18, "mlp": mlp}[a.model]()
model = net
if a.mode != "local":
    dist.init_process_group("gloo")
    model = DDP(net, bucket_cap_mb=a.bucket_mb, gradient_as_bucket_view=True)
    if a.mode == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as h
        model.register_comm_hook(None, h.fp16_compress_hook)
    if a.mode == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as h
        model.register_comm_hook(h.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2), h.powerSGD_hook)
opt = torch.optim.SGD(net.parameters(), a.lr, 0.9)
g = torch.Generator().manual_seed(1)
times, loss = [], None
for i in range(a.warmup + a.steps):
    if a.model == "transformer":
        at = torch.randint(0, len(text) - 129, (a.batch * world,), generator=g).view(world, -1)[rank]
        w = torch.stack([text[k : k + 129] for k in at])
        x, y = w[:, :-1], w[:, 1:]
    else:
        idx = torch.randperm(len(X), generator=g)[: a.batch * world].view(world, -1)[rank]
        x, y = X[idx], Y[idx]
    t0 = time.perf_counter()
    opt.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    if i >= a.warmup:
        times.append(time.perf_counter() - t0)
times.sort()
acc = None
if a.test and rank == 0:
    net.eval()
    with torch.no_grad():
        tx, ty = images("t10k-images-idx3-ubyte.gz")[: a.test], labels("t10k-labels-idx1-ubyte.gz")[: a.test]
        acc = (net(tx).argmax(1) == ty).float().mean().item()
if rank == 0:
    m = times[len(times) // 2]
    print(json.dumps({"peer": f"torch-{torch.__version__}-{a.mode}", "model": a.model, "ranks": world, "batch": a.batch, "bucket_mb": a.bucket_mb,
                      "steps": a.steps, "warmup": a.warmup, "optimizer": f"sgd {a.lr:g} 0.9", "zero_grad": "none", "threads": torch.get_num_threads(),
                      "gradient_mb": 4 * sum(p.numel() for p in net.parameters()) / 1e6, "median_ms": 1e3 * m, "min_ms": 1e3 * times[0], "max_ms": 1e3 * times[-1],
                      "images_per_s": a.batch * world / m, "loss": loss.item(), "accuracy": acc}), flush=True)
if a.mode != "local":
    dist.barrier()

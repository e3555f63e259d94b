#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments, of a random rank, with either exchange.

Usage: random_moments.py STRETTO   (STRETTO_SEED repeats a run, STRETTO_KILLS=20 is for the nightly one)
"""
import os
import random
import sys
import time

from jobs import Job, complaints, show

RANKS = 3


def one(stretto, generator):
    exchange = generator.choice(("owner", "auto"))
    victim = generator.randrange(RANKS)
    moment = generator.uniform(0, 1.5)
    job = Job(stretto, RANKS, steps=100000, env={"STRETTO_EXCHANGE": exchange})
    while time.monotonic() - job.began < moment or not job.kill(victim):
        time.sleep(0.01)
    killed = time.monotonic() - job.began
    job.wait()
    others = [rank for rank in range(RANKS) if rank != victim]
    found = complaints(job, victim, "SIGKILL", others, in_step=False)
    print(f"rank {victim}, {exchange}, after {moment:.3f} s: {job.took - killed:.2f} s to the end", flush=True)
    if found:
        print("FAILED: " + "; ".join(found))
        show(job)
    job.close()
    return bool(found)


def main():
    seed = int(os.environ.get("STRETTO_SEED") or random.SystemRandom().randrange(1 << 32))
    kills = int(os.environ.get("STRETTO_KILLS") or 10)
    print(f"STRETTO_SEED={seed}", flush=True)
    generator = random.Random(seed)
    failures = sum(one(sys.argv[1], generator) for _ in range(kills))
    print(f"{kills} kills, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments, of a random rank, with either exchange.

Usage: random_moments.py STRETTO   (STRETTO_SEED repeats a run, STRETTO_KILLS=100 makes more of them)
"""
import concurrent.futures
import json
import os
import random
import re
import sys
import time

from jobs import AWAITED, IN_STEP, Job, complaints, show

RANKS = 3


def steps_of(job, rank):
    """How many steps a rank has ended: every rank adds a line to the file of metrics for each."""
    try:
        with open(os.path.join(job.folder, "metrics")) as file:
            lines = [line for line in file if line.endswith("}\n")]
    except OSError:
        return 0
    return sum(json.loads(line)["rank"] == rank for line in lines)


def one(stretto, exchange, victim, moment):
    job = Job(stretto, RANKS, steps=100000, env={"STRETTO_EXCHANGE": exchange, "STRETTO_METRICS": "metrics"})
    job.own_files.add("metrics")
    while time.monotonic() - job.began < moment or not job.kill(victim):
        time.sleep(0.01)
    killed = time.monotonic()
    job.wait()
    others = [rank for rank in range(RANKS) if rank != victim]
    # From then on it is always in a step or just between two; after the first the plan is made anew.
    in_steps = steps_of(job, victim) >= 2
    found = complaints(job, victim, "SIGKILL", others, IN_STEP if in_steps else ".*", killed)
    named = any(re.search(AWAITED, job.lines_of(rank)) for rank in others)
    print(f"rank {victim}, {exchange}, after {moment:.3f} s: {job.worst(others, killed):.2f} s to the last end, "
          f"{'in steps' if in_steps else 'before the steps'}", flush=True)
    if found:
        print("FAILED: " + "; ".join(found))
        show(job)
    job.close()
    return bool(found), in_steps, named


def main():
    seed = int(os.environ.get("STRETTO_SEED") or random.SystemRandom().randrange(1 << 32))
    kills = int(os.environ.get("STRETTO_KILLS") or 20)
    print(f"STRETTO_SEED={seed}", flush=True)
    generator = random.Random(seed)
    cases = [(generator.choice(("owner", "auto")), generator.randrange(RANKS), generator.uniform(0, 1.5))
             for _ in range(kills)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda case: one(sys.argv[1], *case), cases))
    failures = sum(failed for failed, _, _ in results)
    in_steps = sum(inside for _, inside, _ in results)
    named = sum(says for _, _, says in results)
    if in_steps > 5 and not named:
        failures += 1
        print("FAILED: nobody named a parameter")
    print(f"{kills} kills, {in_steps} of them in steps, {named} times parameters named, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

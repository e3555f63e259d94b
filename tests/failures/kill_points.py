#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at every named place on every rank: the others end at once and say who, when and what they waited for.

Usage: kill_points.py STRETTO owner|shared [NAME...]
"""
import concurrent.futures
import sys
import time

from jobs import Job, complaints, show

RANKS = 3
# name, pass, is it within a step, exchanges that pass it
BOTH, OWNER = ("owner", "shared"), ("owner",)
POINTS = [
    ("rendezvous.begin", 1, False, BOTH),
    ("rendezvous.before_hello", 1, False, BOTH),
    ("rendezvous.after_hello", 1, False, BOTH),
    ("rendezvous.joined", 1, False, BOTH),
    ("agreement.begin", 1, False, BOTH),
    ("agreement.gathered", 1, False, BOTH),
    ("transport.connect", 1, False, OWNER),
    ("transport.connected", 1, False, BOTH),
    ("step.begin", 3, True, BOTH),
    ("chunk.launched", 1, True, BOTH),
    ("chunk.launched", 9, True, BOTH),
    ("part.received", 9, True, OWNER),
    ("sum.posted", 5, True, BOTH),
    ("result.sent", 5, True, OWNER),
    ("step.footer", 3, True, BOTH),
    ("step.between", 3, True, BOTH),
    ("engine.shutdown", 1, False, BOTH),
    # All have agreed that it is over: the others may end well.
    ("engine.close", 1, False, BOTH),
]


def one(stretto, exchange, name, number, in_step, victim):
    env = {"STRETTO_FAULT": f"{name}@{number}", "STRETTO_FAULT_RANK": str(victim)}
    if exchange == "owner":
        env["STRETTO_EXCHANGE"] = "owner"
    job = Job(stretto, RANKS, env=env).wait()
    others = [rank for rank in range(RANKS) if rank != victim]
    found = complaints(job, victim, "SIGKILL", others, in_step, may_end_well=name == "engine.close")
    return job, found


def main():
    stretto, exchange, *names = sys.argv[1:]
    cases = [(name, number, in_step, victim) for name, number, in_step, exchanges in POINTS for victim in range(RANKS)
             if exchange in exchanges and (not names or name in names)]
    began = time.monotonic()
    worst = {}
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = [(case, pool.submit(one, stretto, exchange, *case)) for case in cases]
        for (name, number, _, victim), future in running:
            job, found = future.result()
            worst.setdefault(f"{name}@{number}", {})[victim] = job.took
            if found:
                failures += 1
                print(f"FAILED: {name}@{number} on rank {victim}: " + "; ".join(found))
                show(job)
            job.close()
    print(f"seconds from start to end, {exchange}:")
    for name, times in worst.items():
        print(f"  {name:<26}" + "".join(f"  rank {rank} {took:5.2f}" for rank, took in sorted(times.items())))
    print(f"{len(cases)} jobs, {failures} failed, {time.monotonic() - began:.0f} s")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

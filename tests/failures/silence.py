#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped (SIGSTOP), and one that lives but stops calling: the others name it and end.

Usage: silence.py STRETTO
"""
import concurrent.futures
import re
import sys

from jobs import IN_STEP, Job, show

RANKS = 3


def start(stretto, exchange, victim, fault, **more):
    return Job(stretto, RANKS, env={"STRETTO_EXCHANGE": exchange, "STRETTO_FAULT": fault,
                                    "STRETTO_FAULT_RANK": str(victim), **more})


def stopped(stretto, exchange, victim):
    """After 3 s of silence a rank counts as lost; `run` has seen it stop."""
    job = start(stretto, exchange, victim, "chunk.launched@9:stop")
    since = job.wait_stopped(victim)
    job.wait()
    found = sum((job.late(rank, since) for rank in range(RANKS) if rank != victim), []) if since else \
        [f"rank {victim} did not stop"]
    if not re.search(rf"rank {victim} was stopped by SIGSTOP", job.from_run()):
        found.append(f"run does not say that rank {victim} was stopped")
    return job, found, \
        rf"{IN_STEP}.*rank {victim} was lost: it has been silent for more than 3 s"


def asleep(stretto, exchange, victim):
    """The control connection lives, so that only the deadline of the step ends it."""
    job = start(stretto, exchange, victim, "step.between@3:delay=60s", STRETTO_TIMEOUT="2s").wait()
    return job, [], rf"step 4, waiting for layer\d+.*(rank {victim} has not sent|the sum of rank {victim} has not come)"


def main():
    cases = [(kind, exchange, victim) for kind in (stopped, asleep) for exchange in ("owner", "auto")
             for victim in (0, 1)]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # they mostly wait
        running = [(case, pool.submit(case[0], sys.argv[1], *case[1:])) for case in cases]
        for (kind, exchange, victim), future in running:
            job, found, expected = future.result()
            found += ["did not end"] if job.hung else []
            if job.code != 4:
                found.append(f"run ended with {job.code} instead of 4")
            for rank in range(RANKS):
                if rank != victim and not re.search("replay: .*" + expected, job.lines_of(rank)):
                    found.append(f"rank {rank} does not say '{expected}'")
            found += [f"left behind: {item}" for item in job.left_behind()]
            print(f"{kind.__name__}, {exchange}, rank {victim}: {job.took:.1f} s", flush=True)
            if found:
                failures += 1
                print("FAILED: " + "; ".join(found))
                show(job)
            job.close()
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

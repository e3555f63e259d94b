#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at every named place on every rank: the others end at once and say who, when and what they waited for.

Usage: kill_points.py STRETTO owner|shared [NAME...]
"""
import concurrent.futures
import pathlib
import re
import signal
import sys
import time

from jobs import AWAITED, IN_STEP, Job, complaints, show

RANKS = 3
# name, pass, is it within a step, exchanges that pass it
BOTH, OWNER, SHARED = ("owner", "shared"), ("owner",), ("shared",)
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
    ("part.received", 9, True, BOTH),
    ("sum.begin", 5, True, SHARED),
    ("sum.posted", 5, True, BOTH),
    ("result.sent", 5, True, BOTH),
    ("step.footer", 3, True, BOTH),
    ("step.between", 3, True, BOTH),
    ("engine.shutdown", 1, False, BOTH),
    # All have agreed that it is over: the others may end well.
    ("engine.close", 1, False, BOTH),
]
# Places in the middle of a step, where the others cannot go on: they name parameters.
MIDDLE = ("chunk.launched", "part.received", "sum.posted", "result.sent")
ELSEWHERE = {"checkpoint.commit": "checkpoint_kill.py", "mpi.start": "../replay/mpi.sh"}


def unlisted():
    """Places in the code that no test kills at, and those that are listed and gone."""
    root = pathlib.Path(__file__).resolve().parents[2]
    text = "".join(path.read_text() for folder in ("src", "adapters", "cli") for path in (root / folder).rglob("*.cc")
                   if not path.name.endswith("_test.cc") and path.name != "fault_point.cc")
    named = re.findall(r'\bfault_point\(\s*"([^"]+)"', text)
    found = [f"{n} places whose name is not written where they are"
             for n in [len(re.findall(r"\bfault_point\(", text)) - len(named)] if n]
    listed = {point[0] for point in POINTS} | set(ELSEWHERE)
    return found + [f"no test kills at {name}" for name in sorted(set(named) - listed)] + \
        [f"{name} is in no file of src" for name in sorted(listed - set(named))]


def environment(exchange, fault, victim):
    env = {"STRETTO_FAULT": fault, "STRETTO_FAULT_RANK": str(victim)}
    if exchange == "owner":
        env["STRETTO_EXCHANGE"] = "owner"
    return env


def at_once(stretto, exchange, name, number, in_step, victim):
    """It kills itself there: the others may be anywhere."""
    job = Job(stretto, RANKS, env=environment(exchange, f"{name}@{number}", victim)).wait()
    others = [rank for rank in range(RANKS) if rank != victim]
    found = complaints(job, victim, "SIGKILL", others, IN_STEP if in_step else ".*", may_end_well=name == "engine.close")
    return job, job.worst(others, job.ended.get(victim, job.began)), found


def awaited(stretto, exchange, name, number, _, victim):
    """It stops there, and is killed once the others can only wait for it."""
    job = Job(stretto, RANKS, env=environment(exchange, f"{name}@{number}:stop", victim))
    stopped = job.wait_stopped(victim)
    time.sleep(1)  # a step takes 3 ms; silence counts as loss after 3 s
    since = time.monotonic()
    job.kill(victim, signal.SIGKILL)
    job.wait()
    others = [rank for rank in range(RANKS) if rank != victim]
    found = complaints(job, victim, "SIGKILL", others, AWAITED, since)
    return job, job.worst(others, since), found if stopped else [f"rank {victim} did not come to {name}"]


def main():
    stretto, exchange, *names = sys.argv[1:]
    cases = [(at_once, name, number, in_step, victim) for name, number, in_step, exchanges in POINTS
             for victim in range(RANKS) if exchange in exchanges and (not names or name in names)]
    # The first of the first step: much of it is still to come.
    cases += [(awaited, name, 1, True, victim) for name in MIDDLE for victim in range(RANKS)
              if any(case[1] == name for case in cases)]
    began = time.monotonic()
    worst = {}
    problems = unlisted()
    for problem in problems:
        print(f"FAILED: {problem}")
    failures = len(problems)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = [(case, pool.submit(case[0], stretto, exchange, *case[1:])) for case in cases]
        for (how, name, number, _, victim), future in running:
            job, took, found = future.result()
            name = f"{name}@{number}" + (", awaited" if how == awaited else "")
            worst.setdefault(name, {})[victim] = took
            if found:
                failures += 1
                print(f"FAILED: {name} on rank {victim}: " + "; ".join(found))
                show(job)
            job.close()
    print(f"seconds from the loss of a rank to the end of the last other, {exchange}:")
    for name, times in worst.items():
        print(f"  {name:<30}" + "".join(f"  rank {rank} {took:5.2f}" for rank, took in sorted(times.items())))
    print(f"{len(cases)} jobs, {failures} failed, {time.monotonic() - began:.0f} s")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

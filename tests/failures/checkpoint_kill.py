#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 while a checkpoint is written: the other rank ends in time, the old checkpoint stands, the next save tidies up.

Usage: checkpoint_kill.py STRETTO FASHION_MNIST
Needs the data set; ends with 77 (skipped) without.
"""
import os
import sys

from jobs import Job, complaints, show

DATA = "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"


def main():
    stretto, fashion_mnist = sys.argv[1], os.path.abspath(sys.argv[2])
    if not os.path.exists(DATA):
        print(f"SKIPPED: {DATA} is not there")
        return 77
    jobs = []

    def train(steps, *more, **env):
        """Trains up to so many steps in the first job's folder, and saves at the end."""
        folder = jobs[0].folder if jobs else "."
        jobs.append(Job(stretto, 2, env=env, command=[
            fashion_mnist, "--steps", str(steps), "--batch", "8", "--test", "0", "--json",
            "--checkpoint", os.path.join(folder, "model"), *more]))
        jobs[0].own_files.add("model")
        return jobs[-1].wait()

    def read():
        with open(os.path.join(jobs[0].folder, "model"), "rb") as file:
            return file.read()

    found = []
    if train(2).code != 0:
        found.append("the first run failed")
    else:
        before = read()
        killed = train(4, "--resume", STRETTO_FAULT="checkpoint.commit@1", STRETTO_FAULT_RANK="0")
        found += complaints(killed, 0, "SIGKILL", [1])
        if read() != before:
            found.append("the old checkpoint is not what it was")
        if not jobs[0].left_behind():
            found.append("it was not killed while it wrote")
        if train(4, "--resume").code != 0 or read() == before:
            found.append("the run after that did not go on from the old checkpoint")
        found += [f"still there after the next save: {item}" for item in jobs[0].left_behind()]
        print(f"rank 1 ended {killed.worst([1], killed.ended.get(0, killed.began)):.2f} s after rank 0")
    if found:
        print("FAILED: " + "; ".join(found))
        for job in jobs:
            show(job)
    for job in jobs:
        job.close()
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

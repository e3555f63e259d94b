#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which system calls happen within steps, on each way that gradients go: only those of waking, sleeping and the transport.

Usage: system_calls.py STEPS_PROGRAM
Needs strace, and the right to trace; ends with 77 (skipped) without.
"""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Waking and sleeping: futex, read and write of eventfds, ppoll, epoll_wait.
# StepReport.cpu_s asks the clock of a thread, which is no vdso call.  sched_yield and restart_syscall: the system's own.
ALLOWED = {"futex", "read", "write", "ppoll", "epoll_wait", "epoll_pwait", "clock_gettime", "sched_yield",
           "restart_syscall"}
# The transport, which nothing passes where ranks read each other's memory.
SOCKETS = {"sendmsg", "readv", "epoll_ctl"}
# The control connections' threads only: a heartbeat a second, on no gradient's way.
CONTROL = {"sendto", "recvfrom", "send", "recv"}


def problems_of(program, way):
    allowed = ALLOWED if way.startswith("shared") else ALLOWED | SOCKETS
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        done = subprocess.run(["strace", "-f", "-qq", "-o", log, program, way, "24"], check=True, capture_output=True,
                              text=True, timeout=120)
        chunks = int(done.stdout)
        lines = open(log).read().splitlines()
    counts = collections.Counter()
    wrong = set()
    control = set()
    inside = False
    for line in lines:
        if "stretto-window-" in line:
            inside = "begins" in line
            continue
        call = re.match(r"(\d+) +(\w+)\(", line)
        if call and call.group(2) == "prctl" and '"stretto-control"' in line:
            control.add(call.group(1))
        if inside and call:
            thread, name = call.groups()
            counts[name] += 1
            if name not in allowed and not (thread in control and name in CONTROL):
                wrong.add(name + (" (not by a control thread)" if name in CONTROL else ""))
    print(f"{way}, {chunks} chunks per rank: " + ", ".join(f"{name} {n}" for name, n in counts.most_common()))
    problems = [f"system calls that nobody named: {', '.join(sorted(wrong))}"] if wrong else []
    if len(control) != 2:
        problems.append(f"{len(control)} threads call themselves stretto-control, not one for each rank")
    if chunks < 1000:
        problems.append(f"the window has {chunks} chunks; it needs 1000")
    if sum(counts.values()) < 100 or ("sendmsg" in counts) == way.startswith("shared"):
        problems.append("the window was not seen")
    return [f"{way}: {problem}" for problem in problems]


def main():
    program = sys.argv[1]
    if shutil.which("strace") is None or subprocess.run(["strace", "-o", "/dev/null", "true"], check=False,
                                                        capture_output=True).returncode != 0:
        print("SKIPPED: no strace, or it may not trace here")
        return 77
    ways = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    problems = [problem for way in ways for problem in problems_of(program, way)]
    for problem in problems:
        print("FAILED: " + problem)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people read when something is wrong, word by word: each case beside its file in tests/golden/errors.

Usage: errors.py STRETTO FOLDER [--update] [CASE...]
What differs from run to run (ports, times, places in the step) is replaced by a word in capitals.
"""
import difflib
import os
import re
import socket
import sys
import tempfile
import time

from jobs import Job

REPLACED = [
    (r"127\.0\.0\.1:\d+", "HOST:PORT"),
    (r"port \d+", "port PORT"),
    (r"rank 0 runs Stretto \S+", "rank 0 runs Stretto VERSION"),
    (r"step \d+, (waiting for [^:]*|nothing in flight)(?=: )", "step STEP, WAITING"),
    (r"stretto-failures-\w+", "FOLDER"),
    (r"/\S*/FOLDER", "FOLDER"),
    (r"; the other ranks have 5 s to end by themselves", ""),  # unless they were quicker
    # Whether the end of a process is seen as an end of file or as a reset is chance.
    (r"was lost: its connection .*", "was lost: ITS CONNECTION ENDED"),
    (r"(?m)^.*stretto: warning: (the connection to rank \d+ broke|rank \d+ closed its connection).*\n", ""),
]


def on_rank(rank, change):
    """A program that makes the change on one rank only and then becomes the replay."""
    return ["sh", "-c", f'if [ "$RANK" = {rank} ]; then {change}; fi; exec "$@"', "rank"]


def fault(text, rank, **more):
    return dict(STRETTO_EXCHANGE="owner", STRETTO_FAULT=text, STRETTO_FAULT_RANK=str(rank), **more)


def busy_port(stretto):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        return Job(stretto, 2, env={"MASTER_PORT": str(taken.getsockname()[1])}).wait()


def one_rank(stretto, **env):
    return Job(stretto, 1, env=env).wait()


def with_config(text):
    """A case whose configuration file says `text`."""
    def case(stretto):
        with tempfile.NamedTemporaryFile("w", prefix="stretto-failures-", suffix=".toml") as file:
            file.write(text)
            file.flush()
            return Job(stretto, 1, run_arguments=["--config", file.name]).wait()
    return case


CASES = {
    "another_model": lambda s: Job(s, 2, program=on_rank(1, 'set -- "$@" --byte-scale 0.5')).wait(),
    "another_version": lambda s: Job(s, 2, program=on_rank(
        1, f'shift; set -- "{os.path.abspath(s)}_of_another_version" "$@"')).wait(),
    "another_token": lambda s: Job(s, 2, program=on_rank(1, "export STRETTO_TOKEN=other")).wait(),
    "another_size": lambda s: Job(s, 2, program=on_rank(1, "export WORLD_SIZE=5")).wait(),
    "rank_twice": lambda s: Job(s, 3, program=on_rank(2, "sleep 1; export RANK=1"),
                                env={"STRETTO_TIMEOUT": "3s"}).wait(),
    "another_chunk": lambda s: Job(s, 2, program=on_rank(1, "export STRETTO_CHUNK=256k")).wait(),
    "another_codec": lambda s: Job(s, 2, program=on_rank(1, "export STRETTO_CODEC=int8")).wait(),
    "codec_unknown_to_one": lambda s: Job(s, 2, env={"STRETTO_CODEC": "int8"},
                                          program=on_rank(1, "export STRETTO_CODEC=int8:levels=3")).wait(),
    "codec_share": lambda s: Job(s, 1, env={"STRETTO_CODEC": "topk:101%"}).wait(),
    "codec_exchange": lambda s: Job(s, 2, env={"STRETTO_CODEC": "int8", "STRETTO_EXCHANGE": "shared"}).wait(),
    "codec_killed_in_a_step": lambda s: Job(s, 2, env=fault("chunk.launched@9", 1, STRETTO_CODEC="sign")).wait(),
    "address_unknown": lambda s: Job(s, 2, program=["env", "MASTER_ADDR=no.such.host.invalid"]).wait(),
    "port_taken": busy_port,
    "rank_missing": lambda s: Job(s, 2, env={"STRETTO_TIMEOUT": "1s"}, program=on_rank(1, "sleep 30")).wait(),
    "killed_before_rendezvous": lambda s: Job(s, 2, env=fault("rendezvous.begin@1", 0)).wait(),
    "killed_in_rendezvous": lambda s: Job(s, 2, env=fault("rendezvous.joined@1", 1)).wait(),
    "killed_in_agreement": lambda s: Job(s, 2, env=fault("agreement.begin@1", 1)).wait(),
    "killed_in_a_step": lambda s: Job(s, 2, env=fault("chunk.launched@9", 1)).wait(),
    "stopped": lambda s: Job(s, 2, env=fault("chunk.launched@9:stop", 1)).wait(),
    "trace_disk_full": lambda s: one_rank(s, STRETTO_TRACE="/dev/full"),
    "metrics_disk_full": lambda s: one_rank(s, STRETTO_METRICS="/dev/full"),
    "metrics_no_folder": lambda s: one_rank(s, STRETTO_METRICS="/none/metrics"),
    "config_missing": lambda s: Job(s, 1, run_arguments=["--config", "/none/job.toml"]).wait(),
    "config_no_toml": with_config("schedule: backward\n"),
    "config_unknown_key": with_config("# a misspelt key\nshedule = 'sequential'\n"),
    "config_wrong_type": with_config("timeout = 60\n"),
    "config_wrong_value": with_config("exchange = 'auto'\n\nlink = '7'\n"),
    "bad_link": lambda s: Job(s, 1, env={"STRETTO_LINK": "7"}).wait(),
}


def text_of(job):
    """Exit code and standard error; the ranks' lines in order of rank, as they come in any order."""
    text = job.err
    for pattern, word in REPLACED:
        text = re.sub(pattern, word, text)
    lines = sorted(text.splitlines(), key=lambda line: re.match(r"\[\d+\]", line).group() if line[:1] == "[" else line)
    return f"exit code {'none: it hung' if job.hung else job.code}\n" + "".join(line + "\n" for line in lines)


def well(job):
    return job.wait().code == 0 and '"mismatches":0' in job.out


def listens(port):
    """Whether somebody on this host listens there, without knocking."""
    with open("/proc/net/tcp") as file:
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in file.readlines()[1:])


def side_by_side(stretto, exchange):
    """Two jobs on one host do not meet: both end well, each with its own gradients."""
    both = [Job(stretto, 2, arguments=("--seed", seed), env={"STRETTO_EXCHANGE": exchange}) for seed in ("1", "2")]
    return both, all([well(job) for job in both])


def same_port(stretto, late_rank, expected):
    """The second job on a port is told so in one line, and the first one never hears of its gradients."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"MASTER_PORT": str(port), "STRETTO_TIMEOUT": "20s"}
    # Rank 1 of the first job lets the other job try first; the name is relative to the job's folder.
    first = Job(stretto, 2, program=on_rank(1, "while [ ! -e go ]; do sleep 0.05; done"), env=env)
    first.own_files.add("go")
    while not listens(port) and first.process.poll() is None:
        time.sleep(0.01)
    program = on_rank(late_rank, "sleep 1") if late_rank is not None else None
    second = Job(stretto, 2, arguments=("--seed", "2"), program=program, env=env).wait()
    open(os.path.join(first.folder, "go"), "w").close()
    told = [line for line in second.err.splitlines() if re.search(expected, line)]
    return [first, second], all((well(first), second.code in (2, 3), len(told) == 1, not second.hung))


TWO_JOBS = {
    "owner": lambda s: side_by_side(s, "owner"),
    "shared": lambda s: side_by_side(s, "auto"),
    "a port that is taken": lambda s: same_port(s, None, r"stretto replay: port \d+ on this host is taken \(another job\?\)"),
    "a rank at the wrong door": lambda s: same_port(
        s, 0, r"stretto replay: rank 0 at \S+ refused rank 1: rank 1 has another token than rank 0"),
}


def two_jobs(stretto):
    failures = 0
    for name, case in TWO_JOBS.items():
        both, good = case(stretto)
        left = [item for job in both for item in job.left_behind()]
        if not good or left:
            failures += 1
            print(f"FAILED: two jobs, {name} {left or ''}")
            print("".join(job.out + job.err for job in both))
        for job in both:
            job.close()
    return failures


def main():
    stretto, folder, *rest = sys.argv[1:]
    update = "--update" in rest
    names = [name for name in rest if name != "--update"] or list(CASES)
    failures = 0
    for name in names:
        job = CASES[name](stretto)
        got = text_of(job)
        left = job.left_behind()
        job.close()
        path = os.path.join(folder, name + ".txt")
        if update:
            with open(path, "w") as file:
                file.write(got)
        want = open(path).read() if os.path.exists(path) else ""
        if got != want or left:
            failures += 1
            print(f"FAILED: {name} {left or ''}")
            sys.stdout.writelines(difflib.unified_diff(want.splitlines(True), got.splitlines(True), path, "now"))
        print(f"{name}: {job.took:.1f} s", flush=True)
    if len(names) == len(CASES):
        failures += two_jobs(stretto)
    unknown = {file[:-4] for file in os.listdir(folder) if file.endswith(".txt")} - set(CASES)
    if unknown:
        failures += 1
        print(f"FAILED: nothing makes {', '.join(sorted(unknown))}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

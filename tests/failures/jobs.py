# SPDX-License-Identifier: Apache-2.0
"""Small replays that are to go wrong: starts one, waits for its end, and keeps what everybody said."""
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time

# What users are promised: so long after a rank was lost every other one has ended.
LIMIT_S = 5
# A job that takes this long hangs.
BOUND_S = 30
SETTINGS = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN STRETTO_SCHEDULE "
            "STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_ORDER STRETTO_TRACE STRETTO_METRICS STRETTO_TIMEOUT").split()
PROFILE = "a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n"


class Job:
    """One `stretto run`.  Its ranks replay a tiny model; `env` is added to their environment.

    `program` starts the replay, `command` takes its place.  `ended` says when each rank was gone, by time.monotonic().
    """

    def __init__(self, stretto, ranks=3, steps=4, env=(), arguments=(), program=None, run_arguments=(), command=None):
        stretto = os.path.abspath(stretto)
        self.folder = tempfile.mkdtemp(prefix="stretto-failures-")
        self.own_files = {"tiny.bk.log"}
        profile = os.path.join(self.folder, "tiny.bk.log")
        with open(profile, "w") as file:
            file.write(PROFILE)
        # Every process of the job is found again by this.
        self.mark = f"STRETTO_TEST_MARK={os.path.basename(self.folder)}"
        environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
        environment.update(dict(env))
        environment.update([self.mark.split("=")])
        replay = [stretto, "replay", "--json", "--profile", profile, "--steps", str(steps),
                  "--warmup", "1", *arguments]
        self.files_before = self._shared_files()
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [stretto, "run", "-n", str(ranks), *run_arguments, "--", *(program or []), *(command or replay)],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True)
        self.out = self.err = ""
        self.started = {}  # rank: process
        self.ended = {}
        self.watcher = threading.Thread(target=self._watch, args=(ranks,), daemon=True)
        self.watcher.start()

    def _watch(self, ranks):
        """Notes when each rank ends, until `run` has."""
        waiting = {os.pidfd_open(self.process.pid): None}
        poll = select.poll()
        poll.register(next(iter(waiting)), select.POLLIN)
        while None in waiting.values():
            if len(self.started) < ranks:
                for pid, rank in self._children():
                    if rank not in self.started:
                        try:
                            descriptor = os.pidfd_open(pid)
                        except ProcessLookupError:
                            continue
                        waiting[descriptor] = rank
                        poll.register(descriptor, select.POLLIN)
                        self.started[rank] = pid
            for descriptor, _ in poll.poll(5 if len(self.started) < ranks else 1000):
                self.ended[waiting.pop(descriptor)] = time.monotonic()
                poll.unregister(descriptor)
                os.close(descriptor)
        for descriptor, rank in waiting.items():  # `run` waits for its ranks; these ended in the same moment
            self.ended[rank] = self.ended[None]
            os.close(descriptor)

    def _children(self):
        """The ranks that `run` has started: (pid, rank)."""
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
                pids = file.read().split()
        except OSError:
            return []
        found = []
        for pid in pids:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    ranks = re.findall(rb"(?:^|\0)RANK=(\d+)\0", file.read())
            except OSError:
                continue
            found += [(int(pid), int(ranks[0]))] if ranks else []
        return found

    def wait_stopped(self, rank):
        """When the rank was seen stopped; None if it never was."""
        while time.monotonic() - self.began < BOUND_S and rank not in self.ended and None not in self.ended:
            try:
                with open(f"/proc/{self.started[rank]}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] == "T":
                        return time.monotonic()
            except (KeyError, OSError):
                pass
            time.sleep(0.01)
        return None

    def late(self, rank, since):
        """What is wrong with when `rank` ended, if another was lost at `since`."""
        took = self.ended.get(rank, self.ended[None]) - since
        return [] if took < LIMIT_S else [f"rank {rank} ended after {took:.1f} s, not within {LIMIT_S} s"]

    def worst(self, ranks, since):
        """Seconds from `since` to the last end of `ranks`."""
        return max(self.ended.get(rank, self.ended[None]) for rank in ranks) - since

    @staticmethod
    def _shared_files():
        return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()

    def pids(self):
        """Of all processes that belong to the job, by their environment: (pid, rank)."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    variables = file.read().decode(errors="replace").split("\0")
                with open(f"/proc/{entry}/stat") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if self.mark in variables and state not in "ZX":
                ranks = [v[5:] for v in variables if v.startswith("RANK=")]
                found.append((int(entry), int(ranks[0]) if ranks else -1))
        return found

    def kill(self, rank, number=signal.SIGKILL):
        """Sends a signal to a rank; whether it was there."""
        pids = [pid for pid, of in self.pids() if of == rank]
        for pid in pids:
            os.kill(pid, number)
        return bool(pids)

    def wait(self, bound=BOUND_S):
        """Reads to the end; kills everything and says so if that does not come."""
        self.hung = False
        try:
            self.out, self.err = self.process.communicate(timeout=bound)
        except subprocess.TimeoutExpired:
            self.hung = True
            self.process.terminate()
            for pid, rank in self.pids():
                if rank >= 0:
                    os.kill(pid, signal.SIGKILL)
            self.out, self.err = self.process.communicate()
        self.watcher.join()
        self.took = time.monotonic() - self.began
        self.code = self.process.returncode
        return self

    def lines_of(self, rank):
        return "\n".join(line[len(f"[{rank}] "):] for line in self.err.splitlines() if line.startswith(f"[{rank}] "))

    def from_run(self):
        return "\n".join(line for line in self.err.splitlines() if line.startswith("stretto run:"))

    def left_behind(self):
        """What should be gone: processes, files in /dev/shm and in the job's folder."""
        deadline = time.monotonic() + 2  # a process that was sent SIGKILL still has to get its turn to end
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [f"process {pid} of rank {rank}" for pid, rank in self.pids()]
        left += [f"/dev/shm/{name}" for name in self._shared_files() - self.files_before if "stretto" in name]
        left += [name for name in os.listdir(self.folder) if name not in self.own_files]
        return left

    def close(self):
        for name in os.listdir(self.folder):
            os.unlink(os.path.join(self.folder, name))
        os.rmdir(self.folder)


def complaints(job, victim, how, others, says=".*", since=None, may_end_well=False):
    """What is wrong with the end of a job whose rank `victim` was killed, at `since` or when it was gone.

    `says` is what the others are to say beside its name.
    """
    found = []
    since = since or job.ended.get(victim, job.began)
    if job.hung:
        found.append(f"did not end in {BOUND_S} s")
    if job.code != 4:
        found.append(f"run ended with {job.code} instead of 4")
    if not re.search(rf"rank {victim} was killed by {how}", job.from_run()):
        found.append(f"run does not say that rank {victim} was killed by {how}")
    for rank in others:
        found += job.late(rank, since)
        if not may_end_well and not re.search(rf"(?m)^(stretto replay|fashion_mnist): {says}.*rank {victim}\b", job.lines_of(rank)):
            found.append(f"rank {rank} does not say '{says}' and rank {victim}")
    if "; sent SIG" in job.err:
        found.append("a rank had to be ended by run")
    found += [f"left behind: {item}" for item in job.left_behind()]
    return found


# What a rank says that was in a step, or has just ended one and waits for nobody.
IN_STEP = r"step \d+, (waiting for \S+|nothing in flight)"
# What it says if it could not go on: the first of the parameters.
AWAITED = r"step \d+, waiting for layer\d+"


def show(job):
    print("---- what the job said")
    print(job.out + job.err)
    print("----", flush=True)

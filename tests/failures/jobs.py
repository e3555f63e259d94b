# SPDX-License-Identifier: Apache-2.0
"""Small replays that are to go wrong: starts one, waits for its end, and keeps what everybody said."""
import os
import re
import signal
import subprocess
import tempfile
import time

# A busy machine may take long; what is measured is printed, what is asserted is only that it ends.
BOUND_S = 30
SETTINGS = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT STRETTO_TOKEN STRETTO_SCHEDULE "
            "STRETTO_CHUNK STRETTO_EXCHANGE STRETTO_ORDER STRETTO_TRACE STRETTO_METRICS STRETTO_TIMEOUT").split()
PROFILE = "a tiny model\n1\n6\n500,4000\n0,120\n300,0\n20,16\n700,2000000\n400,4096\n"


class Job:
    """One `stretto run`.  Its ranks replay a tiny model; `env` is added to their environment."""

    def __init__(self, stretto, ranks=3, steps=4, env=(), arguments=(), program=None, run_arguments=()):
        stretto = os.path.abspath(stretto)
        self.folder = tempfile.mkdtemp(prefix="stretto-failures-")
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
            [stretto, "run", "-n", str(ranks), *run_arguments, "--", *(program or []), *replay], cwd=self.folder,
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out = self.err = ""

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
        self.took = time.monotonic() - self.began
        self.code = self.process.returncode
        return self

    def lines_of(self, rank):
        return "\n".join(line[len(f"[{rank}] "):] for line in self.err.splitlines() if line.startswith(f"[{rank}] "))

    def from_run(self):
        return "\n".join(line for line in self.err.splitlines() if line.startswith("stretto run:"))

    def left_behind(self):
        """What should be gone: processes, files in /dev/shm and in the job's folder."""
        left = [f"process {pid} of rank {rank}" for pid, rank in self.pids()]
        left += [f"/dev/shm/{name}" for name in self._shared_files() - self.files_before if "stretto" in name]
        left += [name for name in os.listdir(self.folder) if name != "tiny.bk.log"]
        return left

    def close(self):
        for name in os.listdir(self.folder):
            os.unlink(os.path.join(self.folder, name))
        os.rmdir(self.folder)


def complaints(job, victim, how, others, in_step, may_end_well=False):
    """What is wrong with the end of a job whose rank `victim` was lost."""
    found = []
    if job.hung:
        found.append(f"did not end in {BOUND_S} s")
    if job.code != 4:
        found.append(f"run ended with {job.code} instead of 4")
    if not re.search(rf"rank {victim} was killed by {how}", job.from_run()):
        found.append(f"run does not say that rank {victim} was killed by {how}")
    for rank in others:
        text = job.lines_of(rank)
        if may_end_well:
            continue
        if not re.search(rf"replay: .*rank {victim}\b", text):
            found.append(f"rank {rank} does not name rank {victim}")
        elif in_step and not re.search(r"step \d+, (waiting for \S+|nothing in flight)", text):
            found.append(f"rank {rank} does not say what it waited for")
    if "still ran and" in job.err:
        found.append("a rank had to be ended by run")
    found += [f"left behind: {item}" for item in job.left_behind()]
    return found


def show(job):
    print("---- what the job said")
    print(job.out + job.err)
    print("----", flush=True)

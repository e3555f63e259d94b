# SPDX-License-Identifier: Apache-2.0
"""What the comparisons of bench/ share: commands with a time-out, test hosts, ratios with their spread, published figures."""
import datetime
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "bench" / "rig" / "hosts.sh"
PYTHON = "/usr/bin/python3"  # Debian's own: its torch is the one that we build against
RESAMPLES = 10_000


class Broken(Exception):
    """The rig, or a run on it, is not as needed: there is no verdict."""


def conclude(name, compare):
    """The exit code of a comparison: its own, or 3 if it came to no verdict."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that hosts are removed
    try:
        return compare()
    except Broken as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return 3


# ---- commands

def need_program(path, option):
    if not os.access(path, os.X_OK):
        raise Broken(f"there is no {path}; build it, or name it with {option}")


# Both sides keep the memory that they free, as `stretto run` has it: else the system's page faults are measured too.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


def run(words, timeout=300, **environment):
    """Output of a command that leaves nothing behind when it takes too long."""
    words = list(map(str, words))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                               env={**os.environ, **environment})
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as problem:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(problem, subprocess.TimeoutExpired):
            raise Broken(f"{' '.join(words)} took more than {timeout} s") from None
        raise
    if process.returncode != 0:
        raise Broken(f"{' '.join(words)} ended with {process.returncode}: {(err.strip() or out.strip())[-500:]}")
    return out


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Results:
    """Keeps every raw result, one JSON line each, in a file; with an empty path nowhere."""

    def __init__(self, path):
        self.path = path

    def keep(self, kind, result):
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps({"kind": kind, **result}) + "\n")
        return result


# ---- test hosts

class Hosts:
    """Test hosts on shaped links while a `with` statement lasts.

    Their names begin with `prefix`, so that they are not those that somebody brought up by hand.  `environment` is
    for hosts.sh: LAB_QUEUE and the like.  In `folder` lie the ranks' logs, and whatever else a run leaves.
    """

    def __init__(self, prefix, count, rate, **environment):
        self.prefix, self.count, self.rate, self.environment = prefix, count, rate, environment

    def __enter__(self):
        if os.geteuid() != 0:
            raise Broken("needs root, for the test hosts")
        if self.prefix + "sw" in run(["ip", "netns", "list"]):
            raise Broken("its hosts exist: another one runs, or was killed; "
                         f"LAB_PREFIX={self.prefix} bench/rig/hosts.sh down removes them")
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        try:
            self.script("up", self.count, self.rate)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.script("down")
        self.temporary.cleanup()

    def script(self, *words, timeout=60, **environment):
        return run([SCRIPT, *words], timeout, LAB_PREFIX=self.prefix, LAB_LOG=self.folder, **self.environment, **environment)

    def goodput(self):
        """Bytes per second that iperf3 moves between two of them."""
        goodput = float(self.script("goodput"))
        print(f"goodput {goodput / 1e6:.2f} MB/s", file=sys.stderr, flush=True)
        return goodput

    def counters(self):
        """Bytes that each host has sent so far."""
        return [int(line) for line in self.script("counters", self.count).split()]

    def run(self, command, timeout=300, **environment):
        """Runs the command once in each host: rank 0's last line of JSON, with `link_mb`, what each host has sent."""
        before = self.counters()
        try:
            results = json_lines(self.script("run", self.count, *command, timeout=timeout, **environment))
        except Broken as problem:
            raise Broken(f"{problem}\n{self.errors()}") from None
        if not results:
            raise Broken(f"{' '.join(map(str, command))} printed no result\n{self.errors()}")
        sent = [after - was for was, after in zip(before, self.counters())]
        return {**results[-1], "link_mb": [bytes_sent / 1e6 for bytes_sent in sent]}

    def errors(self):
        return "".join(path.read_text() for path in sorted(pathlib.Path(self.folder).glob("lab-rank*.err")))


def check_links(result, payload_mb):
    """A run counts only if the links carried at least 0.95 of the payload: namespaces share one kernel, and bytes must
    not pass beside the links."""
    carried = sum(result["link_mb"])
    if carried < 0.95 * payload_mb:
        raise Broken(f"a run does not count: the links carried {carried:.1f} MB of {payload_mb:.1f}\n{json.dumps(result)}")


# ---- figures

def medians(results):
    return [result["median_ms"] for result in results]


def ratio(over, under, seed=1):
    """Ratio of the medians of two series, with its 95 % interval by resampling both."""
    generator = random.Random(seed)

    def draw(values):
        return statistics.median(generator.choices(values, k=len(values)))

    drawn = sorted(draw(over) / draw(under) for _ in range(RESAMPLES))
    middle = statistics.median(over) / statistics.median(under)
    return middle, drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def mean_of_rounds(over, under, seed=1):
    """Mean of the ratios of rounds, with its 95 % interval by resampling the rounds.  A machine that slows down slows
    both sides of a round, so this is the steadier of the two, where a series is long."""
    generator = random.Random(seed)
    rounds = [a / b for a, b in zip(over, under, strict=True)]
    drawn = sorted(statistics.fmean(generator.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    return statistics.fmean(rounds), drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def with_interval(values):
    middle, low, high = values
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def verdict(figures):
    """Prints figures; whether all that are judged (`met`, taken out here) meet their targets."""
    met = [figure.pop("met", True) for figure in figures]
    for figure, reached in zip(figures, met):
        target = f" (target: {figure['target']}{'' if reached else ', MISSED'})" if figure.get("target") else ""
        print(f"{figure['name']}: {figure['value']} {figure.get('unit', '')}".rstrip() + target, flush=True)
    return all(met)


def command_line(words):
    """The command that measured, without what names files of this machine."""
    return "bench/" + re.sub(r" --(program|stretto|raw)[= ]\S+", "", " ".join([pathlib.Path(words[0]).name, *words[1:]]))


def complete(figures, kind):
    """Figures as tools/readme_table.py wants them: each with its command, machine, commit and date."""
    def output(*words):
        return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()

    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    base = {"command": command_line(sys.argv), "machine": f"{os.cpu_count()} cores, {model}", "kind": kind,
            "commit": output("git", "rev-parse", "--short", "HEAD"), "date": datetime.date.today().isoformat()}
    return [{"unit": "", "target": "", **figure, **base} for figure in figures]


def publish(name, figures):
    """Writes docs/measured/NAME.json."""
    path = ROOT / "docs" / "measured" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}; tools/readme_table.py --write brings it to README", file=sys.stderr)

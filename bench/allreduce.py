#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce beside the peers, by turns:

    bench/allreduce.py host --stretto build/release/cli/stretto      2 ranks on this host: Open MPI and Gloo
    sudo bench/allreduce.py rig --stretto build/release/cli/stretto  4 ranks on shaped links: against 2 S (P-1)/P

host: rounds of Open MPI, Open MPI with single_copy_mechanism none, ours, and all that once more, so that a peer is
first and last; Gloo once per round.  A size's figure is the median over the rounds of the medians that each run
prints; the peer is the better of Open MPI's two settings at each size.

rig: per rate and buffer, iperf3's goodput, then ours; one all-reduce of 15 MB takes at best 2 S (P-1)/P / goodput.
A run counts only if the links' counters grew by 0.95 of the payload.  The last point has a rank that is 50 ms late.

--write puts the figures into docs/measured; --raw FILE keeps every result, one JSON line each.  Ends with 1 if a
target is missed.
"""
import argparse
import math
import statistics
import sys

from rig.comparison import (PYTHON, ROOT, Broken, Hosts, Results, check_links, complete, conclude, json_lines, need_program,
                            publish, run, verdict)

PEERS = ROOT / "bench" / "peers" / "allreduce_peers.py"
PREFIX = "reduce"  # of our hosts' names
JUDGED = range(256 << 10, (16 << 20) + 1)
NO_COPY = ["--mca", "btl_vader_single_copy_mechanism", "none"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["host", "rig"])
    parser.add_argument("--stretto", default=str(ROOT / "build" / "release" / "cli" / "stretto"))
    parser.add_argument("--rounds", type=int, default=0, help="default 15 on one host, 5 on the rig")
    parser.add_argument("--ranks", type=int, default=0, help="default 2 on one host, 4 on the rig")
    parser.add_argument("--bytes", type=int, default=15_000_000, help="rig: size of the all-reduce")
    parser.add_argument("--rates", default="500mbit,137mbit,730mbit")
    parser.add_argument("--queues", default="20ms,3ms")
    parser.add_argument("--late-ms", type=float, default=50)
    parser.add_argument("--quick", action="store_true", help="one round, one rate: to see that it works")
    parser.add_argument("--raw", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.ranks = options.ranks or (2 if options.mode == "host" else 4)
    options.rounds = options.rounds or (15 if options.mode == "host" else 5)
    if options.quick:
        options.rounds, options.rates, options.queues = 1, options.rates.split(",")[0], options.queues.split(",")[0]
    return options


# ---- one host

def mpi(options, *settings):
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", *settings, "-n", options.ranks, PYTHON, PEERS, "mpi"]
    return json_lines(run(words))


def gloo(options):
    words = [options.stretto, "run", "-n", options.ranks, "--no-prefix", "--", PYTHON, PEERS, "gloo"]
    return json_lines(run(words))


def ours(options):
    results = json_lines(run([options.stretto, "bench", "allreduce", "--json", "-n", options.ranks]))
    for result in results:
        if result["mismatches"] or result["exchange"] != "shared":
            raise Broken(f"a run of ours does not count: {result}")
    return results


def host(options, kept):
    times = {}  # (who, bytes) -> medians of the runs

    def measure(who, results):
        for result in results:
            kept.keep(who, result)
            name = f"{who} {result['memory']}" if "memory" in result else who
            times.setdefault((name, result["bytes"]), []).append(result["median_us"])

    for _ in range(options.rounds):
        measure("mpi", mpi(options))
        measure("mpi, no single copy", mpi(options, *NO_COPY))
        measure("ours", ours(options))
        measure("gloo", gloo(options))
    measure("mpi, no single copy", mpi(options, *NO_COPY))
    measure("mpi", mpi(options))
    median = {key: statistics.median(values) for key, values in times.items()}
    rows = []
    for size in sorted({bytes_ for _, bytes_ in median if ("ours arena", bytes_) in median and ("mpi", bytes_) in median}):
        best = min(median["mpi", size], median["mpi, no single copy", size])
        rows.append({"bytes": size, "mpi_us": median["mpi", size], "mpi_no_copy_us": median["mpi, no single copy", size],
                     "gloo_us": median["gloo", size], "arena_us": median["ours arena", size],
                     "user_us": median["ours user", size], "arena_ratio": best / median["ours arena", size],
                     "user_ratio": best / median["ours user", size]})
    print(f"{'bytes':>10} {'mpi':>9} {'no copy':>9} {'gloo':>9} {'arena':>9} {'user':>9}   best mpi / arena, / user")
    for row in rows:
        print(f"{row['bytes']:>10} {row['mpi_us']:9.1f} {row['mpi_no_copy_us']:9.1f} {row['gloo_us']:9.1f} "
              f"{row['arena_us']:9.1f} {row['user_us']:9.1f}   {row['arena_ratio']:.2f} {row['user_ratio']:.2f}")
    judged = [row for row in rows if row["bytes"] in JUDGED]
    mean = lambda key: math.exp(statistics.mean(math.log(row[key]) for row in judged))
    arena, user, small = mean("arena_ratio"), mean("user_ratio"), rows[0]["arena_us"]
    least = lambda key: min(row[key] for row in judged)
    name = f"all-reduce, {options.ranks} ranks on one host, Open MPI's better setting / ours, 256 KiB to 16 MiB"
    figures = [
        {"name": f"{name}, arena memory", "value": f"{arena:.2f} (at no size below {least('arena_ratio'):.2f})",
         "unit": "times", "target": ">= 2, at no size below 1.2", "met": arena >= 2 and least("arena_ratio") >= 1.2},
        {"name": f"{name}, the user's memory", "value": f"{user:.2f} (at no size below {least('user_ratio'):.2f})",
         "unit": "times", "target": "at no size below 1.0", "met": least("user_ratio") >= 1},
        {"name": f"all-reduce of 1 KiB, {options.ranks} ranks on one host", "value": f"{small:.1f}", "unit": "us",
         "target": "< 20", "met": small < 20},
        {"name": "the same of 64 MiB, arena memory (Open MPI / ours)",
         "value": f"{rows[-1]['arena_us'] / 1e3:.1f} ({rows[-1]['arena_ratio']:.1f})", "unit": "ms (times)",
         "target": "reported"},
    ]
    return figures


# ---- shaped links

def point(options, hosts, late_ms, kept):
    """One run of ours on the rig as it is; returns its median in seconds."""
    result = kept.keep("rig", hosts.run(
        [options.stretto, "bench", "allreduce", "--json", "--sizes", options.bytes // 4 * 4, "--memory", "user",
         "--repetitions", 9, "--late-ms", late_ms]))
    # 5 to warm up, 1 to check, each 2 S (P-1)/P per rank.
    check_links(result, (result["repetitions"] + 6) * 2 * result["bytes"] * (options.ranks - 1) / 1e6)
    if result["mismatches"]:
        raise Broken(f"a run does not count: {result['mismatches']} elements are wrong")
    return result["median_us"] / 1e6


def shaped(options, kept):
    figures = []
    for queue in options.queues.split(","):
        for rate in options.rates.split(","):
            late = [0, options.late_ms] if rate == options.rates.split(",")[0] else [0]
            with Hosts(PREFIX, options.ranks, rate, LAB_QUEUE=queue) as hosts:
                figures += [figure_of(options, hosts, queue, late_ms, kept) for late_ms in late]
    return figures


def figure_of(options, hosts, queue, late_ms, kept):
    ratios = []
    for _ in range(options.rounds):
        ideal = 2 * options.bytes * (options.ranks - 1) / options.ranks / hosts.goodput()
        ratios.append(ideal / point(options, hosts, late_ms, kept))
    value = statistics.median(ratios)
    target = 0.97 if queue == "20ms" else 0.93
    late = f", one rank {late_ms:g} ms late (counted from then)" if late_ms else ""
    print(f"{hosts.rate} {queue}{late}: {value:.3f} of the ideal  {[round(r, 3) for r in ratios]}", flush=True)
    return {"name": f"all-reduce of {options.bytes / 1e6:g} MB, {options.ranks} ranks at {hosts.rate}, {queue} of buffer{late}: "
                    "ideal time at iperf3's goodput / ours",
            "value": f"{value:.3f}", "unit": "of the ideal", "target": f">= {target}", "met": value >= target}


def compare(options):
    need_program(options.stretto, "--stretto")
    kept = Results(options.raw)
    figures = host(options, kept) if options.mode == "host" else shaped(options, kept)
    met = verdict(figures)
    if options.write:
        kind = "loopback" if options.mode == "host" else "shaped links"
        publish(f"allreduce_{options.mode}", complete(figures, kind))
    return 0 if met else 1


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("allreduce.py", lambda: compare(chosen)))

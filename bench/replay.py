#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Replay beside DistributedDataParallel on shaped links, by turns:

    sudo bench/replay.py --stretto build/release/cli/stretto

Brings up four hosts at 500 Mbit/s, measures their goodput, and for each byte scale runs five rounds of: DDP, ours
backward, ours sequential, ours with a message per parameter, DDP.  DDP uses the best of three bucket sizes, chosen
in runs before that do not count.  A run of ours counts only if the links' counters say that its bytes passed through
them, and only with every lock closed that check_run lists.  Prints a table, and writes docs/measured/replay.json with
--write.  The hosts are removed at the end, however it comes.

Every raw result is kept in --raw FILE, one JSON line per run.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from rig.comparison import (PYTHON, ROOT, Broken, Hosts, Results, complete, conclude, medians, need_program, publish, ratio,
                            with_interval)

PEER = ROOT / "bench" / "peers" / "ddp_replay.py"
PACKETS = ROOT / "bench" / "rig" / "packets.py"
CONTROL_PORT = 29555  # where ranks find each other
PREFIX = "replay"  # of our hosts' names


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretto", default=str(ROOT / "build" / "release" / "cli" / "stretto"))
    parser.add_argument("--profile", default=str(ROOT / "bench" / "profiles" / "resnet50.bk.log"))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="500mbit")
    parser.add_argument("--scales", default="0.0375,0.15,0.6", help="byte scales")
    parser.add_argument("--time-scale", type=float, default=4)
    parser.add_argument("--forward-ratio", type=float, default=0.5)
    parser.add_argument("--buckets", default="1,4,25", help="DDP's bucket sizes in MB; the best is compared with")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: to see that it works")
    parser.add_argument("--raw", default="", help="keep every result here")
    parser.add_argument("--write", action="store_true", help="write docs/measured/replay.json")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.steps, options.warmup = 1, 4, 2
    return options


# ---- runs

def common(options, scale):
    return ["--profile", options.profile, "--time-scale", options.time_scale, "--byte-scale", scale,
            "--forward-ratio", options.forward_ratio, "--steps", options.steps, "--warmup", options.warmup]


def time_out(options):
    return 120 + 20 * (options.steps + options.warmup)


def run_peer(options, hosts, scale, bucket):
    return hosts.run([PYTHON, PEER, *common(options, scale), "--bucket-mb", bucket], time_out(options))


def run_ours(options, hosts, scale, extra, **environment):
    command = [options.stretto, "replay", "--json", "--quiet", *common(options, scale), *extra]
    result = hosts.run(command, time_out(options), **environment)
    check_run(result)
    return result


# ---- locks

def check_run(result):
    """Ends the whole comparison if a run does not measure what it says."""
    problems = []
    if result["mismatches"] != 0 or result["verified_steps"] < 3:
        problems.append(f"{result['mismatches']} mismatches in {result['verified_steps']} verified steps")
    if result["slept_ms"] < result["compute_ms"]:
        problems.append(f"slept {result['slept_ms']:.1f} ms of {result['compute_ms']:.1f}")
    for rank, (link, said) in enumerate(zip(result["link_mb"], result["wire_mb_total_by_rank"])):
        # Acknowledgements, headers of Ethernet, IP and TCP, and rendezvous come on top.
        if not 0.95 <= link / said <= 1.05:
            problems.append(f"rank {rank} reports {said:.2f} MB on the wire and its link carried {link:.2f}")
    formula = 2 * result["gradient_mb"] * (result["ranks"] - 1) / result["ranks"]
    if not 0.97 <= result["wire_mb"] / formula <= 1.10:
        problems.append(f"{result['wire_mb']:.2f} MB a step; 2 S (P-1)/P is {formula:.2f}")
    if problems:
        raise Broken("this run does not count: " + "; ".join(problems) + f"\n{json.dumps(result)}")
    # Noise and not a lie; shown, so that one can see it.
    result["total_over_median"] = result["total_ms"] / (result["steps"] * result["median_ms"])


# ---- the first chunk, from a trace

def first_chunks(path, output_layers=2):
    """From a rank's trace, per step: which chunk was handed to the exchange first, and how long after the output
    layer's last gradient (and after its first)."""
    steps = {}
    for event in json.loads(pathlib.Path(path).read_text()):
        if event["ph"] == "M":
            continue
        step = steps.setdefault(event["args"]["step"], {"ready": {}, "chunks": []})
        if event["name"].startswith("ready "):
            step["ready"][event["args"]["id"]] = event["ts"]
        elif event["ph"] == "b" and event["name"].startswith("chunk "):
            step["chunks"].append((event["ts"], event["args"]["id"]))
    found = []
    for step in steps.values():
        if step["chunks"] and len(step["ready"]) >= output_layers:
            at, chunk = min(step["chunks"])
            ready = [step["ready"][i] for i in range(output_layers)]
            # A chunk that leaves in parts may begin with what came first.
            since = max([t for t in ready if t <= at], default=at)
            found.append({"chunk": chunk, "at": at, "ready": since,
                          "after_ready_ms": (at - since) / 1e3, "after_first_ms": (at - min(ready)) / 1e3})
    return found


def first_bytes(chunks, packets, control_port):
    """Per step, ms from ready to the first payload that left after the chunk's hand-over, on any connection but the control
    one; and the same to the first packet with more than a message's head.  None where no packet was seen."""
    data = sorted(packet for packet in packets if control_port not in packet[2:4])

    def after(chunk, least):
        return next(((at - chunk["ready"]) / 1e3 for at, size, *_ in data if at >= chunk["at"] and size >= least), None)

    return [(after(chunk, 1), after(chunk, 1000)) for chunk in chunks]


class Packets:
    """Watches what leaves the first host."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", PREFIX + "1", PYTHON, str(PACKETS), "e1", self.path], stdout=subprocess.PIPE)
        if not self.process.stdout.readline():
            raise Broken("packets.py cannot listen")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def trace_run(options, hosts, scale):
    trace = os.path.join(hosts.folder, "trace.json")
    packets = os.path.join(hosts.folder, "packets.json")
    with Packets(packets):
        result = run_ours(options, hosts, scale, ["--schedule", "backward"], STRETTO_TRACE=trace, LAB_PORT=str(CONTROL_PORT))
    found = first_chunks(f"{trace}.0")[options.warmup:]
    if not found:
        raise Broken("the trace holds no step")
    result["first_chunk_is_output_layer"] = all(entry["chunk"] == 0 for entry in found)
    result["first_chunk_delay_ms"] = max(entry["after_ready_ms"] for entry in found)
    left = first_bytes(found, json.loads(pathlib.Path(packets).read_text()), CONTROL_PORT)
    if any(None in delays for delays in left):
        raise Broken("the link carried nothing after the first chunk's hand-over")
    result["first_byte_delay_ms"] = statistics.median(delays[0] for delays in left)
    result["first_byte_delay_max_ms"] = max(delays[0] for delays in left)
    result["first_data_delay_ms"] = statistics.median(delays[1] for delays in left)
    result["first_chunk_after_first_gradient_ms"] = max(entry["after_first_ms"] for entry in found)
    return result


# ---- figures

def median_of(results):
    return statistics.median(medians(results))


def compare_scale(options, hosts, scale, goodput, kept):
    tried = {}
    buckets = [float(word) for word in options.buckets.split(",")]
    for bucket in buckets if len(buckets) > 1 else []:
        tried[bucket] = kept.keep("ddp, choosing", run_peer(options, hosts, scale, bucket))["median_ms"]
    bucket = min(tried, key=tried.get) if tried else buckets[0]
    runs = {"ddp": [], "backward": [], "sequential": [], "per parameter": []}
    for number in range(options.runs):
        print(f"byte scale {scale}, round {number + 1} of {options.runs}", file=sys.stderr, flush=True)
        runs["ddp"].append(kept.keep("ddp", run_peer(options, hosts, scale, bucket)))
        for name, extra in [("backward", ["--schedule", "backward"]), ("sequential", ["--schedule", "sequential"]),
                            ("per parameter", ["--schedule", "backward", "--per-parameter"])]:
            runs[name].append(kept.keep(name, run_ours(options, hosts, scale, extra)))
        runs["ddp"].append(kept.keep("ddp", run_peer(options, hosts, scale, bucket)))
    traced = kept.keep("traced", trace_run(options, hosts, scale))
    return figures_of(options, scale, goodput, bucket, runs, traced)


def figures_of(options, scale, goodput, bucket, runs, traced):
    ours, one = runs["backward"], runs["backward"][0]
    hosts = options.hosts
    transfer_ms = 1e3 * 2 * one["gradient_mb"] * 1e6 * (hosts - 1) / hosts / goodput
    limit_ms = max(one["compute_ms"], transfer_ms)
    step_ms, sequential_ms = median_of(ours), median_of(runs["sequential"])
    return {
        "scale": scale, "gradient_mb": one["gradient_mb"], "compute_ms": one["compute_ms"], "transfer_ms": transfer_ms,
        "goodput_mb_s": goodput / 1e6, "bucket_mb": bucket, "ddp_ms": median_of(runs["ddp"]), "backward_ms": step_ms,
        "sequential_ms": sequential_ms, "per_parameter_ms": median_of(runs["per parameter"]),
        "ddp_over_ours": ratio(medians(runs["ddp"]), medians(ours)),
        "per_parameter_over_ours": ratio(medians(runs["per parameter"]), medians(ours)),
        "saved_percent": 100 * (1 - step_ms / sequential_ms),
        "step_over_limit": step_ms / limit_ms,
        "total_over_median": statistics.median(run["total_over_median"] for run in ours),
        "link_over_wire": statistics.median(sum(run["link_mb"]) / sum(run["wire_mb_total_by_rank"]) for run in ours),
        "cpu_s": statistics.median(run["cpu_s"] for run in ours),
        **{key: traced[key] for key in traced if key.startswith("first_")},
    }


def table(figures):
    lines = ["| gradient | transfer / compute | limit | sequential | per parameter | DDP, best bucket | ours | DDP / ours (95 %) | "
             "saved | ours / limit |", "|---|---|---|---|---|---|---|---|---|---|"]
    for f in figures:
        lines.append(
            f"| {f['gradient_mb']:.1f} MB | {f['transfer_ms'] / f['compute_ms']:.2f} "
            f"| {max(f['compute_ms'], f['transfer_ms']):.0f} ms | {f['sequential_ms']:.0f} | {f['per_parameter_ms']:.0f} "
            f"| {f['ddp_ms']:.0f} ({f['bucket_mb']:g} MB) | {f['backward_ms']:.0f} "
            f"| {with_interval(f['ddp_over_ours'])} | {f['saved_percent']:.1f} % | {f['step_over_limit']:.3f} |")
    return "\n".join(lines)


def published(options, figures):
    """The same, as tools/readme_table.py wants it."""
    name = pathlib.Path(options.profile).name.split(".")[0]
    entries = []
    for f in figures:
        what = f"Replay of {name}, {f['gradient_mb']:.1f} MB, {options.hosts} ranks at {options.rate}"
        entries += [
            {"name": f"{what}: DDP's step / ours", "value": with_interval(f["ddp_over_ours"]), "target": "at least 0.99"},
            {"name": f"{what}: saved of the sequential step", "value": f"{f['saved_percent']:.1f}", "unit": "%"},
            {"name": f"{what}: step / max(compute, transfer)", "value": f"{f['step_over_limit']:.3f}"},
            {"name": f"{what}: a message per parameter / ours", "value": with_interval(f["per_parameter_over_ours"])},
            {"name": f"{what}: from ready to the first byte on the link, median (longest)",
             "value": f"{f['first_byte_delay_ms']:.2f} ({f['first_byte_delay_max_ms']:.2f})", "unit": "ms", "target": "below 1"},
            {"name": f"{what}: first on the wire", "target": "the output layer",
             "value": "the output layer" if f["first_chunk_is_output_layer"] else "another layer"},
            {"name": f"{what}: bytes that the links counted / reported", "value": f"{f['link_over_wire']:.3f}",
             "target": "0.95 to 1.05"},
        ]
    return complete(entries, "shaped links")


def compare(options):
    need_program(options.stretto, "--stretto")
    kept = Results(options.raw)
    figures = []
    with Hosts(PREFIX, options.hosts, options.rate) as hosts:
        goodput = hosts.goodput()
        for scale in options.scales.split(","):
            figures.append(compare_scale(options, hosts, float(scale), goodput, kept))
            print(json.dumps(figures[-1]), flush=True)
    print(table(figures))
    if options.write:
        publish("replay", published(options, figures))
    return 0 if all(map(holds, figures)) else 1


def holds(figure):
    """Whether a byte scale meets its targets; that the links agree was seen to in check_run."""
    return (figure["ddp_over_ours"][0] >= 0.99 and figure["first_chunk_is_output_layer"]
            and figure["first_byte_delay_ms"] < 1)


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("replay.py", lambda: compare(chosen)))

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training for real beside DistributedDataParallel on shaped links, by turns:

    sudo bench/train.py --program build/release/examples/fashion_mnist

ResNet-18 on Fashion-MNIST: two hosts at 1 Gbit/s, one rank each, 16 pictures per rank and step, SGD with momentum, one
thread per rank; both keep the memory that they free (`stretto run` has it so).  DDP uses the better of two bucket sizes,
chosen in runs before that do not count; then five rounds of DDP, ours, DDP.  Both must say that they do the same work
(check_same_work), and the links' counters that they did it.

*Not slower*: the 95 % interval of the ratio of median steps, ours / DDP, ends below 1.02.  Prints the figures, and
writes docs/measured/train.json with --write.  Ends with 1 if ours is slower.  The hosts are removed at the end, however
it comes.  Every raw result is kept in --raw FILE, one JSON line per run.
"""
import argparse
import statistics
import sys

from rig.comparison import (KEEP_MEMORY, PYTHON, ROOT, Broken, Hosts, Results, check_links, complete, conclude,
                            mean_of_rounds, medians, need_program, publish, ratio, verdict, with_interval)

PEER = ROOT / "bench" / "peers" / "ddp_train.py"
PREFIX = "train"  # of our hosts' names
SLOWER = 1.02
SAME = ["model", "ranks", "batch", "steps", "warmup", "gradient_mb", "optimizer", "zero_grad", "threads"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "examples" / "fashion_mnist"))
    parser.add_argument("--model", default="resnet18", choices=["resnet18", "mlp"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--batch", type=int, default=16, help="pictures per rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--buckets", default="4,25", help="DDP's bucket sizes in MB; the better is compared with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: to see that it works")
    parser.add_argument("--raw", default="", help="keep every result here")
    parser.add_argument("--write", action="store_true", help="write docs/measured/train.json")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 2, 1
    return options


def measure(options, hosts, command, kept, kind):
    """One run on all hosts; it counts only if the links carried its gradients."""
    work = ["--model", options.model, "--batch", options.batch, "--lr", options.lr, "--steps", options.steps,
            "--warmup", options.warmup]
    result = kept.keep(kind, hosts.run([*command, *work], 120 + 20 * (options.steps + options.warmup), **KEEP_MEMORY))
    steps = options.steps + options.warmup
    check_links(result, steps * 2 * result["gradient_mb"] * (options.hosts - 1))
    return result


def check_same_work(ours, peer):
    different = [f"{key}: ours {ours.get(key)}, the peer's {peer.get(key)}" for key in SAME
                 if key not in ours or key not in peer or ours[key] != peer[key]]
    if different:
        raise Broken("the two do not do the same work: " + "; ".join(different))


def compare(options):
    need_program(options.program, "--program")
    kept = Results(options.raw)
    runs = {"ddp": [], "ours": []}
    with Hosts(PREFIX, options.hosts, options.rate) as hosts:
        goodput = hosts.goodput()

        def peer(bucket, kind):
            return measure(options, hosts, [PYTHON, PEER, "--bucket-mb", bucket], kept, kind)

        buckets = [float(word) for word in options.buckets.split(",")]
        tried = {bucket: peer(bucket, "ddp, choosing")["median_ms"] for bucket in buckets if len(buckets) > 1}
        bucket = min(tried, key=tried.get) if tried else buckets[0]
        for number in range(options.rounds):
            runs["ddp"].append(peer(bucket, "ddp"))
            runs["ours"].append(measure(options, hosts, [options.program, "--json"], kept, "ours"))
            runs["ddp"].append(peer(bucket, "ddp"))
            check_same_work(runs["ours"][-1], runs["ddp"][-1])
            print(f"round {number + 1} of {options.rounds}: DDP {runs['ddp'][-2]['median_ms']:.0f} and "
                  f"{runs['ddp'][-1]['median_ms']:.0f} ms, ours {runs['ours'][-1]['median_ms']:.0f} ms",
                  file=sys.stderr, flush=True)
    figures = figures_of(options, runs, bucket, goodput)
    slower = ratio(medians(runs["ours"]), medians(runs["ddp"]))
    verdict(figures)
    print(f"ours / DDP: {with_interval(slower)}; not slower if the interval ends below {SLOWER}")
    if options.write:
        publish("train", complete(figures, "shaped links"))
    return 1 if slower[2] >= SLOWER else 0


def figures_of(options, runs, bucket, goodput):
    ours = runs["ours"]

    def middle(key):
        return statistics.median(run[key] for run in ours)

    gradient_mb = ours[0]["gradient_mb"]
    peers = medians(runs["ddp"])
    around = [(before + after) / 2 for before, after in zip(peers[::2], peers[1::2])]  # a round is DDP, ours, DDP
    by_rounds = mean_of_rounds(around, medians(ours))
    transfer_ms = 1e3 * 2 * gradient_mb * 1e6 * (options.hosts - 1) / options.hosts / goodput
    what = f"Training {options.model}, {gradient_mb:.1f} MB, {options.hosts} ranks at {options.rate}"
    return [
        {"name": f"{what}: DDP's step / ours", "value": with_interval(ratio(medians(runs["ddp"]), medians(ours))),
         "target": f"not slower: the interval begins above {1 / SLOWER:.2f}"},
        {"name": f"{what}: the same, mean of {len(ours)} rounds", "value": with_interval(by_rounds)},
        {"name": f"{what}: step (DDP's, bucket of {bucket:g} MB)",
         "value": f"{middle('median_ms'):.0f} ({statistics.median(medians(runs['ddp'])):.0f})", "unit": "ms"},
        {"name": f"{what}: exposed, of {transfer_ms:.0f} ms of transfer", "value": f"{middle('exposed_ms'):.0f}",
         "unit": "ms"},
    ]


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("train.py", lambda: compare(chosen)))

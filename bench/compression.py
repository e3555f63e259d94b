#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What codecs bring on shaped links, by turns with our own float32 and, live, with DistributedDataParallel's hooks:

    sudo bench/compression.py counts|replay|train --stretto build/release/cli/stretto

counts  Bytes that the links carry per step, float32 / codec, for 4 and 8 ranks: what a longer replay carries more than a
        shorter one, so that the start of a job does not count.
replay  4 ranks at 100 Mbit/s, byte scale 0.6: step of overlapped float32 / step with the codec, and the share of the
        ceiling max(C, T) / max(C, T / r), where C is the computing, T = 2 S (P-1)/P at iperf3's goodput of the same run,
        and r what `counts` measures, here on the same links.
train   ResNet-18 live, 2 ranks at 100 Mbit/s, beside DDP with its fp16 and PowerSGD hooks; and what encoding takes from
        compute: a step on one host whose gradients travel through memory, with codec / without.

Prints the figures; --write puts them into docs/measured/compression_PART.json.  Ends with 1 if one misses its target.  The
hosts are removed at the end, however it comes.  Every raw result is kept in --raw FILE, one JSON line per run.
"""
import argparse
import statistics
import sys

from rig.comparison import (KEEP_MEMORY, PYTHON, ROOT, Broken, Hosts, Results, complete, conclude, json_lines, medians,
                            need_program, publish, ratio, run, verdict, with_interval)

PEER = ROOT / "bench" / "peers" / "ddp_train.py"
PREFIX = "press"  # of our hosts' names
LEAST = {"fp16": 1.95, "int8": 3.8, "sign": 26, "topk:0.1%": 200, "topk:0.01%": 1000}
SAME = 0.05  # a codec's ratio at 4 and at 8 ranks may differ by so much
CEILING = 85  # percent
NOT_CODED = {"topk:0.01%": "0"}  # elements below which a layer travels as it is, where not the usual


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["counts", "replay", "train"])
    parser.add_argument("--stretto", default=str(ROOT / "build" / "release" / "cli" / "stretto"))
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "examples" / "fashion_mnist"))
    parser.add_argument("--profile", default=str(ROOT / "bench" / "profiles" / "resnet50.bk.log"))
    parser.add_argument("--codecs", default="", help="instead of those with a target")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--byte-scale", type=float, default=0.6)
    parser.add_argument("--time-scale", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--live-codecs", default="powersgd:4,topk:1%,sign,int8,fp16", help="of `train`")
    parser.add_argument("--quick", action="store_true", help="one round of few steps: to see that it works")
    parser.add_argument("--raw", default="", help="keep every result here")
    parser.add_argument("--write", action="store_true", help="write docs/measured/compression_PART.json")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 3, 1
    return options


def chosen_codecs(options, usual):
    return options.codecs.split(",") if options.codecs else usual


def replay(options, hosts, codec, steps, time_scale=None):
    words = [options.stretto, "replay", "--json", "--quiet", "--profile", options.profile, "--byte-scale", options.byte_scale,
             "--time-scale", options.time_scale if time_scale is None else time_scale, "--steps", steps,
             "--warmup", options.warmup, "--codec", codec]
    result = hosts.run(words, 600, STRETTO_CODEC_MINIMUM=NOT_CODED.get(codec, "1024"))
    if result["mismatches"] != 0 or result["verified_steps"] < 3:
        raise Broken(f"{codec}: {result['mismatches']} mismatches in {result['verified_steps']} verified steps")
    return result


# ---- counts

def link_bytes(options, hosts, codec, kept, few=2, many=6):
    """Bytes that all links together carry per step."""
    carried = [sum(kept.keep(f"counts, {hosts.count} ranks, {codec}", replay(options, hosts, codec, steps, 0))["link_mb"])
               for steps in (few, many)]
    return (carried[1] - carried[0]) / (many - few)


def counts(options, kept):
    figures, ratios = [], {}
    for ranks in (4, 8):
        with Hosts(PREFIX, ranks, "none") as hosts:
            dense = link_bytes(options, hosts, "none", kept)
            for codec in chosen_codecs(options, list(LEAST)):
                ratios[codec, ranks] = dense / link_bytes(options, hosts, codec, kept, 2, 22)
                least = LEAST.get(codec)
                without = ", every layer encoded" if codec in NOT_CODED else ""
                figures.append({"name": f"Bytes on the links, {ranks} ranks, ResNet-50: float32 / {codec}{without}",
                                "value": f"{ratios[codec, ranks]:.2f}", "target": f"at least {least}" if least else "",
                                "met": least is None or ratios[codec, ranks] >= least})
    for codec in chosen_codecs(options, list(LEAST)):
        apart = ratios[codec, 8] / ratios[codec, 4]
        figures.append({"name": f"{codec}: that ratio at 8 ranks / at 4", "value": f"{apart:.3f}", "target": "0.95 to 1.05",
                        "met": abs(apart - 1) <= SAME})
    return figures


# ---- replay

def replays(options, kept):
    codecs = chosen_codecs(options, ["fp16", "int8", "sign", "topk:1%"])
    runs = {codec: [] for codec in ["none", *codecs]}
    with Hosts(PREFIX, 4, options.rate) as hosts:
        goodput = hosts.goodput()
        dense = link_bytes(options, hosts, "none", kept, 1, 3)
        counted = {codec: dense / link_bytes(options, hosts, codec, kept) for codec in codecs}
        for number in range(options.rounds):
            for codec in runs:
                runs[codec].append(kept.keep(f"replay, {codec}", replay(options, hosts, codec, options.steps)))
                print(f"round {number + 1} of {options.rounds}, {codec}: {runs[codec][-1]['median_ms']:.0f} ms",
                      file=sys.stderr, flush=True)
    one = runs["none"][0]
    compute, transfer = one["compute_ms"], 1e3 * 2 * one["gradient_mb"] * 1e6 * 3 / 4 / goodput
    figures = []
    for codec in codecs:
        faster = ratio(medians(runs["none"]), medians(runs[codec]))
        ceiling = max(compute, transfer) / max(compute, transfer / counted[codec])
        what = f"Replay of ResNet-50, {one['gradient_mb']:.1f} MB, 4 ranks at {options.rate}, {codec}"
        figures += [
            {"name": f"{what}: step of overlapped float32 / with it", "value": with_interval(faster)},
            {"name": f"{what}: share of the ceiling, {ceiling:.2f}", "value": f"{100 * faster[0] / ceiling:.1f}", "unit": "%",
             "target": f"at least {CEILING}", "met": 100 * faster[0] / ceiling >= CEILING},
        ]
    return figures


# ---- train

def live(options, hosts, command, kept, kind, **environment):
    work = ["--model", "resnet18", "--batch", 16, "--lr", 0.02, "--steps", options.steps, "--warmup", options.warmup]
    result = kept.keep(kind, hosts.run([*command, *work], 600, **KEEP_MEMORY, **environment))
    print(f"{kind}: {result['median_ms']:.0f} ms", file=sys.stderr, flush=True)
    return result


def trains(options, kept):
    need_program(options.program, "--program")
    codecs = options.live_codecs.split(",")
    peers = {mode: [] for mode in ("powersgd", "fp16")}
    ours = {codec: [] for codec in codecs}
    alone = {codec: [] for codec in ["none", *codecs]}
    with Hosts(PREFIX, 2, options.rate) as hosts:
        for _ in range(options.rounds):
            for mode, results in peers.items():
                results.append(live(options, hosts, [PYTHON, PEER, "--mode", mode], kept, f"DDP {mode}"))
            for codec, results in ours.items():
                results.append(live(options, hosts, [options.program, "--json"], kept, codec, STRETTO_CODEC=codec))
            for codec, results in alone.items():
                results.append(kept.keep(f"not sent, {codec}", encoding_alone(options, codec)))
    figures = []
    what = f"Training resnet18, 2 ranks at {options.rate}"
    for codec in codecs:
        for mode, results in peers.items():
            slower = ratio(medians(ours[codec]), medians(results))
            figures.append({"name": f"{what}: our step with {codec} / DDP's with {mode}", "value": with_interval(slower),
                            "target": "below 0.95" if codec == codecs[0] else "",
                            "met": slower[2] < 0.95 or codec != codecs[0]})
        figures.append({"name": f"{what}: step with {codec}", "unit": "ms",
                        "value": f"{statistics.median(medians(ours[codec])):.0f}"})
    for codec in codecs:
        figures.append({"name": f"Training resnet18, one rank, nothing sent: step with {codec} / without a codec",
                        "value": with_interval(ratio(medians(alone[codec]), medians(alone["none"])))})
    return figures


def encoding_alone(options, codec):
    """A job of one rank: it encodes, decodes, and sends nothing."""
    words = [options.stretto, "run", "--no-prefix", "-n", "1", "--", options.program, "--json", "--model", "resnet18",
             "--batch", 16, "--lr", 0.02, "--steps", options.steps, "--warmup", options.warmup]
    return json_lines(run(words, 600, STRETTO_CODEC=codec, OMP_NUM_THREADS="1"))[-1]


def compare(options):
    need_program(options.stretto, "--stretto")
    kept = Results(options.raw)
    figures = {"counts": counts, "replay": replays, "train": trains}[options.part](options, kept)
    met = verdict(figures)
    if options.write:
        publish(f"compression_{options.part}", complete(figures, "shaped links"))
    return 0 if met else 1


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("compression.py", lambda: compare(chosen)))

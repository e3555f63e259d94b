#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether training with compressed gradients comes to what it comes to with float32:

    bench/convergence.py --stretto build/release/cli/stretto --program build/release/examples/fashion_mnist

Four ranks on this host train the cnn on Fashion-MNIST (468 steps of 32 pictures per rank: one epoch, good for 86 %; SGD
without a momentum at the best of the rates 0.35, 0.5 and 0.7: docs/compression.md says what a momentum does) and a transformer
of two layers on the characters of Debian's bible-kjv-text (300 steps of 4 windows of 128 per rank): once with float32 and
once with each codec (STRETTO_CODEC), from the same weights, with the same data in the same order and float32's own
hyper-parameters; that for five seeds.  On two cores a run takes about half a minute.  A figure is the mean over the seeds of
codec - float32, in points of accuracy for the cnn, in percent of the test loss (the sign turned: less than 0 is worse) for
the transformer, with its interval of two standard errors.

*within*: the mean is at most 0.3 points, or 1 % of loss, from 0, or within two standard errors of it; else *worse* or
*better*.  Ends with 1 if a codec is worse that should not be, or if topk:0.1% without error feedback is less than one point
worse on the cnn than with it; then a test so short would tell nothing apart.  A run whose weights are to the bit those of
float32 has not used its codec, and does not count.  Every result is kept in --raw FILE, one JSON line per run; each seed's
difference stands beside the mean.  --write puts the figures into docs/measured/convergence.json.
"""
import argparse
import dataclasses
import math
import statistics
import sys

from rig import plain_text
from rig.comparison import ROOT, Broken, Results, complete, conclude, json_lines, need_program, publish, run, verdict

TEXT = ROOT / "build" / "bible-kjv.txt"
RANKS = 4
TIME_OUT_S = 900
PLAIN = "none"
SPARSE, WITHOUT_FEEDBACK = "topk:0.1%", "topk:0.1%:feedback=off"
LEAST_LOSS_WITHOUT_FEEDBACK = 1.0  # points
CODECS = ["fp16", "bf16", "int8", "int4", "sign", "signmaj", "topk:1%", "randomk:10%", "powersgd:4", SPARSE, WITHOUT_FEEDBACK]
NOT_DEFAULTS = [SPARSE, WITHOUT_FEEDBACK]  # shown, and held to nothing but what the second lacks


@dataclasses.dataclass(frozen=True)
class Model:
    """What is trained, and what of the result is compared."""
    words: tuple
    steps: int
    unit: str
    margin: float  # in `unit`

    def gain(self, codec, plain):
        """How much better the codec's run is, in `unit`."""
        if self.unit == "points":
            return 100 * (codec["accuracy"] - plain["accuracy"])
        return 100 * (plain["test_loss"] - codec["test_loss"]) / plain["test_loss"]

    def value(self, result):
        return f"{100 * result['accuracy']:.2f} %" if self.unit == "points" else f"{result['test_loss']:.4f} nats"


MODELS = {
    "cnn": Model(("--batch", 32, "--lr", 0.5, "--momentum", 0, "--decay"), 468, "points", 0.3),
    "transformer": Model(("--batch", 4, "--lr", 0.1, "--data", TEXT), 300, "% of loss", 1.0),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretto", default=str(ROOT / "build" / "release" / "cli" / "stretto"))
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "examples" / "fashion_mnist"))
    parser.add_argument("--models", default=",".join(MODELS), help="cnn, transformer")
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="instead of each model's own")
    parser.add_argument("--quick", action="store_true", help="two seeds of few steps: to see that it works")
    parser.add_argument("--raw", default="", help="keep every result here")
    parser.add_argument("--write", action="store_true", help="write docs/measured/convergence.json")
    options = parser.parse_args()
    options.models, options.codecs = options.models.split(","), options.codecs.split(",")
    if options.quick:
        options.seeds, options.steps = 2, 10
    if options.seeds < 2 or not set(options.models) <= set(MODELS):
        parser.error(f"at least two seeds, and models of {', '.join(MODELS)}")
    return options


def train(options, kept, name, codec, seed):
    model = MODELS[name]
    words = [options.stretto, "run", "-n", RANKS, "--no-prefix", "--", options.program, "--model", name, *model.words,
             "--steps", options.steps or model.steps, "--seed", seed, "--json"]
    result = json_lines(run(words, TIME_OUT_S, STRETTO_CODEC=codec))[-1]
    print(f"{name}, {codec}, seed {seed}: {model.value(result)}, {result['total_s']:.0f} s", file=sys.stderr, flush=True)
    return kept.keep("run", {**result, "codec": codec, "seed": seed})


# ---- what is made of it

@dataclasses.dataclass(frozen=True)
class Difference:
    """Gains of one codec over another, seed by seed."""
    gains: tuple

    @property
    def mean(self):
        return statistics.fmean(self.gains)

    @property
    def two_errors(self):
        return 2 * statistics.stdev(self.gains) / math.sqrt(len(self.gains))

    def verdict(self, margin):
        if abs(self.mean) <= max(margin, self.two_errors):
            return "within"
        return "worse" if self.mean < 0 else "better"

    def text(self):
        low, high = self.mean - self.two_errors, self.mean + self.two_errors
        seeds = ", ".join(f"{gain:+.2f}" for gain in self.gains)
        return f"{self.mean:+.2f} ({low:+.2f} to {high:+.2f}; seeds {seeds})"


def difference(model, codec_runs, plain_runs):
    return Difference(tuple(model.gain(codec, plain) for codec, plain in zip(codec_runs, plain_runs, strict=True)))


def need_use(codec, codec_runs, plain_runs):
    for codec_run, plain_run in zip(codec_runs, plain_runs, strict=True):
        if codec_run["weight_hash"] == plain_run["weight_hash"]:
            raise Broken(f"with STRETTO_CODEC={codec} the weights are to the bit those of float32: it was not used")


def judged(name, model, codec, found):
    """What a codec is held to, with its defaults."""
    outcome = found.verdict(model.margin)
    figure = {"name": f"{name}, {RANKS} ranks, {codec} - float32", "value": f"{found.text()}: {outcome}", "unit": model.unit}
    if codec in NOT_DEFAULTS:
        return figure
    return {**figure, "target": f"within {model.margin:g}, or two standard errors", "met": outcome != "worse"}


def judged_feedback(name, model, found):
    """topk without error feedback against topk with it."""
    figure = {"name": f"{name}, {RANKS} ranks, {WITHOUT_FEEDBACK} - {SPARSE}", "value": found.text(), "unit": model.unit}
    if model.unit != "points":
        return figure
    return {**figure, "target": f"<= -{LEAST_LOSS_WITHOUT_FEEDBACK:g}", "met": found.mean <= -LEAST_LOSS_WITHOUT_FEEDBACK}


def figures_of(name, model, runs):
    """`runs` are by codec, PLAIN among them, each a list by seed."""
    plain = runs[PLAIN]
    mean = statistics.fmean(result["accuracy" if model.unit == "points" else "test_loss"] for result in plain)
    value, unit = (f"{100 * mean:.2f}", "%") if model.unit == "points" else (f"{mean:.4f}", "nats")
    what = "test accuracy" if model.unit == "points" else "test loss"
    figures = [{"name": f"{name}, {RANKS} ranks, float32: {what}, mean of {len(plain)} seeds", "value": value, "unit": unit}]
    for codec, codec_runs in runs.items():
        if codec != PLAIN:
            figures.append(judged(name, model, codec, difference(model, codec_runs, plain)))
    if SPARSE in runs and WITHOUT_FEEDBACK in runs:
        figures.append(judged_feedback(name, model, difference(model, runs[WITHOUT_FEEDBACK], runs[SPARSE])))
    return figures


def compare(options):
    need_program(options.stretto, "--stretto")
    need_program(options.program, "--program")
    if "transformer" in options.models:
        try:
            plain_text.write(TEXT)
        except RuntimeError as problem:
            raise Broken(str(problem)) from None
    kept = Results(options.raw)
    figures = []
    for name in options.models:
        runs = {codec: [] for codec in [PLAIN, *options.codecs]}
        for seed in range(1, options.seeds + 1):  # seed by seed: what ends early still has pairs
            for codec, results in runs.items():
                results.append(train(options, kept, name, codec, seed))
                if codec != PLAIN:
                    need_use(codec, results, runs[PLAIN])
        figures += figures_of(name, MODELS[name], runs)
    met = verdict(figures)
    if options.write:
        publish("convergence", complete(figures, "loopback"))
    return 0 if met else 1


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("convergence.py", lambda: compare(chosen)))

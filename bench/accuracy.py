#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What training on Fashion-MNIST comes to, with two ranks over an emulated 1 Gbit/s link:

    bench/accuracy.py --stretto build/release/cli/stretto --program build/release/examples/fashion_mnist

Three runs of the cnn: as ./demo does it; with the classes 0 to 4 on one rank and 5 to 9 on the other; and that once more
with every rank alone (--no-exchange), which must fail, or the run before it has shown nothing.  Prints the figures, and
writes docs/measured/accuracy.json with --write.  Ends with 1 if a target is missed.
"""
import argparse
import sys
import time

from rig.comparison import ROOT, Results, complete, conclude, json_lines, need_program, publish, run, verdict

TIME_OUT_S = 900


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretto", default=str(ROOT / "build" / "release" / "cli" / "stretto"))
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "examples" / "fashion_mnist"))
    parser.add_argument("--quick", action="store_true", help="few steps: to see that it works")
    parser.add_argument("--raw", default="", help="keep every result here")
    parser.add_argument("--write", action="store_true", help="write docs/measured/accuracy.json")
    return parser.parse_args()


def train(options, kept, kind, *extra):
    """The program's line of JSON, with the wall-clock time of the command."""
    short = ["--steps", 40] if options.quick else []
    begin = time.monotonic()
    lines = json_lines(run([options.stretto, "run", "-n", 2, "--link", "1gbit", "--no-prefix", "--", options.program,
                            "--model", "cnn", "--json", *short, *extra], TIME_OUT_S))
    return kept.keep(kind, {**lines[-1], "command_s": time.monotonic() - begin})


def judged(name, accuracy, target, met):
    return {"name": name, "value": f"{100 * accuracy:.1f}", "unit": "%", "target": target, "met": met}


def compare(options):
    need_program(options.stretto, "--stretto")
    need_program(options.program, "--program")
    kept = Results(options.raw)
    demo = train(options, kept, "demo", "--compare-sequential")
    by_class = train(options, kept, "by class", "--by-class")
    alone = train(options, kept, "by class, no exchange", "--by-class", "--no-exchange")
    what = "Fashion-MNIST, cnn, 2 ranks over an emulated 1 Gbit/s link"
    figures = [
        judged(f"{what}: test accuracy", demo["accuracy"], ">= 88", demo["accuracy"] >= 0.88),
        {"name": f"{what}: training for it", "value": f"{demo['total_s']:.0f}", "unit": "s", "target": "< 180",
         "met": demo["total_s"] < 180},
        judged(f"{what}, classes 0-4 on one rank and 5-9 on the other", by_class["accuracy"], ">= 80",
               by_class["accuracy"] >= 0.80),
        judged("the same without the exchange", alone["accuracy"], "below 80", alone["accuracy"] < 0.80),
    ]
    met = verdict(figures)
    if options.write:
        publish("accuracy", complete(figures, "loopback"))
    return 0 if met else 1


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("accuracy.py", lambda: compare(chosen)))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long ready() takes while the network stands still:

    cmake --build build/release --target ready_latency && bench/ready.py --program build/release/tests/hot_path/ready_latency

Three runs of ready_latency: 20,000 calls each while the peer is stopped.  Prints the median of the 99th percentiles, and
writes docs/measured/ready.json with --write.  Ends with 1 if it is above 20 us.
"""
import argparse
import statistics
import sys

from rig.comparison import ROOT, complete, conclude, json_lines, need_program, publish, run, verdict

MOST_US = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "tests" / "hot_path" / "ready_latency"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/measured/ready.json")
    return parser.parse_args()


def compare(options):
    need_program(options.program, "--program")
    runs = [json_lines(run([options.program]))[-1] for _ in range(options.runs)]
    p99 = [result["ready_p99_us"] for result in runs]
    value = statistics.median(p99)
    figure = {"name": "ready() while the network stands still, 99th percentile (lowest and highest run)",
              "value": f"{value:.1f} ({min(p99):.1f}-{max(p99):.1f})", "unit": "us", "target": f"<= {MOST_US}", "met": value <= MOST_US}
    met = verdict([figure])
    if options.write:
        publish("ready", complete([figure], "loopback"))
    return 0 if met else 1


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(conclude("ready.py", lambda: compare(chosen)))

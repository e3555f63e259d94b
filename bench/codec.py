#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast one core encodes gradients, beside memcpy and beside what PyTorch's own operations take for the same:

    cmake --build build/release --target stretto && bench/codec.py

Runs `stretto bench codec` on 100 MB of gradients with heavy tails, then of zeros, and the operations by which a program
in PyTorch would do the same work on one thread: x.half(), x.bfloat16(), quantisation to 8 bits, signs packed by eights,
topk, PowerSGD's products.  Each side has a memcpy of its own beside it, and shares of that are compared.  Writes
docs/measured/codec.json with --write.  Ends with 1 if a target is missed or an error is beyond its bound.
"""
import argparse
import json
import statistics
import subprocess
import sys

from rig.comparison import KEEP_MEMORY, PYTHON, ROOT, Broken, Results, complete, conclude, json_lines, need_program, publish, run, \
    verdict

# Encoding as a share of memcpy's rate, on gradients with heavy tails.
TARGETS = {"fp16": 0.7, "bf16": 0.7, "int8": 0.6, "sign": 0.7, "topk:1%": 0.25, "topk:0.1%": 0.25, "powersgd:4": 0.06}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretto", default=str(ROOT / "build" / "release" / "cli" / "stretto"))
    parser.add_argument("--size", default="100m")
    parser.add_argument("--seconds", type=float, default=3, help="for each codec")
    parser.add_argument("--raw", default="", help="append every raw result to this file")
    parser.add_argument("--peers", action="store_true", help="only PyTorch's operations, as JSON lines (runs itself so)")
    parser.add_argument("--write", action="store_true", help="write docs/measured/codec.json")
    return parser.parse_args()


def lines_of_bench(words):
    """Its JSON lines, also where it ends with 1 because a bound does not hold: that is a result."""
    process = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if process.returncode not in (0, 1):
        raise Broken(f"{' '.join(words)} ended with {process.returncode}: {process.stderr.strip()[-500:]}")
    return json_lines(process.stdout)


def known_codecs(stretto):
    return [line["codec"] for line in lines_of_bench([stretto, "--json", "bench", "codec", "--size", "8m", "--seconds", "0"])]


def ours(options, results):
    names = known_codecs(options.stretto)
    if "topk:1%" in names:
        names.insert(names.index("topk:1%") + 1, "topk:0.1%")
    figures = []
    for distribution in ("heavy", "zeros"):
        words = [options.stretto, "--json", "bench", "codec", "--size", options.size, "--seconds", str(options.seconds),
                 "--distribution", distribution]
        for name in names:
            words += ["--codec", name]
        figures += [results.keep("codec", line) for line in lines_of_bench(words)]
    return figures


# ---- PyTorch's side, in a process of its own

def parse_bytes(text):
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def peer_operations(torch, count):
    """Name, and the function that does it; each like ours in what it makes, and with the residual that its hook has."""
    generator = torch.Generator().manual_seed(1)
    x = torch.distributions.StudentT(3.0).sample((1 << 20,)).repeat(-(-count // (1 << 20)))[:count] * 1e-3
    residual = torch.zeros(count)
    left = torch.empty(count)
    copy = torch.empty(count)
    half, brain = torch.empty(count, dtype=torch.float16), torch.empty(count, dtype=torch.bfloat16)
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8)
    rows = count // 1024
    matrix_q = torch.randn(1024, 4, generator=generator)

    def int8():
        total = x + residual
        scale = float(total.abs().max()) / 127
        levels = torch.quantize_per_tensor(total, scale, 0, torch.qint8)
        torch.sub(total, levels.dequantize(), out=left)

    def sign():
        total = x + residual
        scale = total.abs().mean()
        signs = torch.sign(total)
        bits = (signs < 0).view(-1, 8)
        (bits.to(torch.uint8) * weights).sum(1, dtype=torch.uint8)
        torch.sub(total, signs * scale, out=left)

    def topk(share):
        total = x + residual
        _, index = torch.topk(total.abs(), int(count * share), sorted=False)
        total[index].clone()
        left.copy_(total)
        left[index] = 0

    def powersgd():
        matrix = (x + residual)[:rows * 1024].view(rows, 1024)
        p = torch.linalg.qr(matrix @ matrix_q).Q
        q = matrix.t() @ p
        torch.sub(matrix, p @ q.t(), out=left[:rows * 1024].view(rows, 1024))

    return {"memcpy": lambda: copy.copy_(x), "fp16": lambda: half.copy_(x), "bf16": lambda: brain.copy_(x), "int8": int8, "sign": sign,
            "topk:1%": lambda: topk(0.01), "topk:0.1%": lambda: topk(0.001), "powersgd:4": powersgd}


def measure_peers(options):
    import time

    import torch
    torch.set_num_threads(1)
    count = parse_bytes(options.size) // 4 // 1024 * 1024
    operations = peer_operations(torch, count)
    times = {name: [] for name in operations}
    for repetition in range(6):
        for name, operation in operations.items():
            copied = time.perf_counter()
            operations["memcpy"]()
            start = time.perf_counter()
            operation()
            if repetition > 0:  # memory that nobody has touched is slow
                times[name].append((time.perf_counter() - start, start - copied))
    for name, pairs in times.items():
        taken, copied = (statistics.median(column) for column in zip(*pairs))
        print(json.dumps({"codec": name, "encode_gbps": 4 * count / taken / 1e9, "memcpy_gbps": 4 * count / copied / 1e9,
                          "share": copied / taken, "torch": torch.__version__}), flush=True)
    return 0


def peers(options, results):
    lines = json_lines(run([PYTHON, __file__, "--peers", "--size", options.size], 600, **KEEP_MEMORY, OMP_NUM_THREADS="1"))
    return {line["codec"]: results.keep("torch", line) for line in lines}


# ---- figures

def figure_of(line, peer):
    name, heavy = line["codec"], line["distribution"] == "heavy"
    target = TARGETS.get(name) if heavy else None
    value = (f"{line['share']:.2f} of memcpy ({line['encode_gbps']:.2f} of {line['memcpy_gbps']:.2f} GB/s; "
             f"touches {line['touched_bytes_per_element']:.2f} bytes per element, {line['limit_share']:.2f} of that limit); "
             f"decode {line['decode_gbps']:.2f} GB/s; ratio {line['ratio']:.2f}")
    if heavy and peer:
        value += f"; PyTorch's operations {peer['share']:.2f} of memcpy"
    if not line["bound_ok"]:
        value += "; an error is BEYOND ITS BOUND"
    return {"name": f"encode {name}, {line['distribution']}", "value": value, "target": f">= {target} of memcpy" if target else "",
            "met": line["bound_ok"] and (target is None or line["share"] >= target)}


def compare(options):
    need_program(options.stretto, "--stretto")
    results = Results(options.raw)
    lines = ours(options, results)
    beside = peers(options, results)
    figures = [figure_of(line, beside.get(line["codec"])) for line in lines]
    met = verdict(figures)
    if options.write:
        publish("codec", complete(figures, "one core"))
    return 0 if met else 1


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(measure_peers(chosen) if chosen.peers else conclude("codec.py", lambda: compare(chosen)))

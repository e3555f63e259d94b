#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom:  check_layers.py [ROOT]

Every #include of C++ code under ROOT (this repository) is held against three rules:
  a module of src/ includes only the modules below it (BELOW);
  a third-party header is included only in its owner's folder (OWNERS);
  a public header includes only the standard library, stretto/ and tl/expected.
Prints file:line and the rule for each violation; ends with 1 if there is one.
"""
import pathlib
import re
import sys

# What each module of src/ may include besides itself.  A new arrow is a decision: see ARCHITECTURE.md.
BELOW = {
    "base": [],
    "trace": ["base"],
    "kernels": ["base"],
    "codec": ["base", "kernels"],
    "device": ["base", "trace", "kernels"],
    "transport": ["base", "trace"],
    "rendezvous": ["base", "trace"],
    "exchange": ["base", "trace", "kernels", "codec", "device", "transport"],
    "collective": ["base", "trace", "kernels", "device", "transport", "rendezvous", "exchange", "registry"],
    "schedule": ["base"],
    "checkpoint": ["base"],
    "optimizer": ["base", "kernels"],
    "registry": ["base", "codec", "device", "transport", "rendezvous", "exchange"],
    "engine": ["base", "trace", "kernels", "codec", "device", "transport", "rendezvous", "exchange", "schedule",
               "checkpoint", "optimizer", "registry"],
    "planner": ["base", "trace", "schedule", "engine"],
}
# What stands on top of src/, and the modules that it may see.
ALL = list(BELOW)
ON_TOP = {"cli": ALL, "bench": ALL, "tests": ALL, "services": ALL, "examples": [],
          "adapters": ["base", "trace", "engine", "checkpoint", "collective", "optimizer"]}

# First part of an include of a third-party header -> paths (regular expressions) that may have it.
IS_TEST = re.compile(r"tests/|.*_test\.cc$|.*/testing/|include/stretto/spi/conformance/")
TESTS = [IS_TEST.pattern]
TORCH = [r"adapters/torch/", r"include/stretto/torch", r"examples/", r"tests/torch/", r"tests/install"]
OWNERS = {
    "tl": [r"include/stretto/status\.hpp$"],
    "torch": TORCH, "ATen": TORCH, "c10": TORCH,
    "hwy": [r"src/kernels/"],
    "spdlog": [r"src/base/"],
    "fmt": [r"src/base/"],
    "xxhash.h": [r"src/base/"],
    "atomic_queue": [r"src/base/", r"src/engine/"],
    "nlohmann": [r"src/checkpoint/", r"src/trace/", r"src/engine/", r"src/planner/", r"cli/", r"examples/", r"bench/",
                 r"tests/"],
    "CLI": [r"cli/", r"examples/"],
    "zlib.h": [r"examples/"],
    "mpi.h": [r"src/exchange/mpi/"],
    "ucp": [r"src/transport/ucx/"], "ucs": [r"src/transport/ucx/"], "uct": [r"src/transport/ucx/"],
    "nccl.h": [r"src/exchange/nccl/"],
    "cuda.h": [r"src/device/cuda/"], "cuda_runtime.h": [r"src/device/cuda/", r"src/exchange/nccl/"],
    "grpcpp": [r"services/aggregator/"],
    "gtest": TESTS, "gmock": TESTS, "rapidcheck.h": TESTS, "rapidcheck": TESTS,
    "benchmark": [r"bench/", r".*_bench\.cc$"],
}
SYSTEM_FOLDERS = {"sys", "net", "netinet", "arpa", "linux", "cxxabi.h"}

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".hpp", ".cc", ".h", ".cu"}
ROOTS = ["include", "src", "adapters", "cli", "examples", "services", "tests", "bench"]


def module_rule(path, target):
    """Says what is wrong with `path` including the internal header `target`, or nothing."""
    parts, module = path.split("/"), target.split("/")[0]
    if parts[0] == "src" and parts[1] not in BELOW:
        return f"src/{parts[1]} is not in the table of modules"
    if parts[0] != "include" and IS_TEST.match(path):
        return None  # a test may stand on whatever its subject can be built with
    if parts[0] == "src":
        allowed = [parts[1], *BELOW[parts[1]]]
    elif parts[0] == "include":
        return "a public header includes an internal one"
    else:
        allowed = ON_TOP.get(parts[0], [])
    return None if module in allowed else f"{'/'.join(parts[:2])} may not include {module}"


def third_party_rule(path, target):
    first = target.split("/")[0]
    if first in OWNERS:
        if any(re.match(pattern, path) for pattern in OWNERS[first]):
            return None
        return f"{first} belongs to {' '.join(OWNERS[first])}"
    if "/" in target and first not in SYSTEM_FOLDERS:
        return f"{first} is a library without an owner: add it to OWNERS"
    if re.match(r"include/(?!stretto/spi/conformance/)", path) and target.endswith(".h"):
        return "a public header includes only the standard library, stretto/ and tl/expected"
    return None


def rule_broken(path, target):
    """The rule that `#include target` in `path` breaks, or nothing."""
    if target.startswith("stretto/"):
        return None
    if target.split("/")[0] in BELOW and "/" in target:
        return module_rule(path, target)
    if re.match(r"(tests|cli|examples|adapters|bench)/", target):
        own = path.split("/")[0] == target.split("/")[0]
        return None if own or IS_TEST.match(path) else f"{target} is of a layer above"
    return third_party_rule(path, target)


def violations(root):
    for top in ROOTS:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                delimiter, target = match.groups()
                if delimiter == '"' and "/" not in target:
                    continue  # a file of the same folder
                broken = rule_broken(path, target)
                if broken:
                    yield f"{path}:{number}: {target}: {broken}"


def main(root):
    found = list(violations(pathlib.Path(root)))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [pathlib.Path(__file__).resolve().parent.parent])))

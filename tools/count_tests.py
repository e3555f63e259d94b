#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases:  count_tests.py RESULTS MAY_SKIP

RESULTS holds ctest.junit (how each ctest entry ended) and NAME.xml (the cases of the GoogleTest program NAME).
An entry without such a file counts as one case.  A skip that no pattern of MAY_SKIP names is a failure; so is a
program that ended badly although its cases passed, and a run without any case.
The last line printed is "N passed, N failed, N skipped".
"""
import fnmatch
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def read_patterns(path):
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def gtest_cases(path):
    """Yields (name, outcome, why) for each case of a GoogleTest program."""
    for case in ElementTree.parse(path).iter("testcase"):
        name = f'{case.get("classname")}.{case.get("name")}'
        skipped = case.find("skipped")
        if case.find("failure") is not None:
            yield name, "failed", "see above"
        elif skipped is not None:
            yield name, "skipped", skipped.get("message", "").strip()
        elif case.get("status") != "run":
            yield name, "skipped", "disabled"
        else:
            yield name, "passed", ""


def ctest_outcome(entry):
    if entry.get("status") == "run":
        return "passed", ""
    skipped = entry.find("skipped")
    if skipped is not None or entry.get("status") == "disabled":
        return "skipped", skipped.get("message", "") if skipped is not None else "disabled"
    failure = entry.find("failure")
    return "failed", (failure is not None and failure.get("message")) or "see above"


def collect(results):
    """Returns (name, outcome, why) for every case of a run."""
    cases = []
    files = {path.stem: path for path in results.glob("*.xml")}
    for entry in ElementTree.parse(results / "ctest.junit").iter("testcase"):
        name = entry.get("name")
        outcome, why = ctest_outcome(entry)
        path = files.pop(name, None)
        try:
            inner = list(gtest_cases(path)) if path else []
        except ElementTree.ParseError:
            inner = []  # the program died while it wrote
        cases += inner
        if not inner or (outcome != "passed" and all(case[1] != "failed" for case in inner)):
            cases.append((name, outcome, why))
    for path in files.values():  # programs that a test started under another name
        cases += gtest_cases(path)
    return cases


def tally(cases, may_skip):
    """Returns the counts and prints what is not well."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, outcome, why in cases:
        if outcome == "skipped" and not any(fnmatch.fnmatchcase(name, p) for p in may_skip):
            outcome, why = "failed", f"skipped, but not named in may-skip.txt: {why}"
        if outcome != "passed":
            print(f"{outcome}: {name}: {why}")
        counts[outcome] += 1
    return counts


def main(results, may_skip):
    results = pathlib.Path(results)
    cases = collect(results) if (results / "ctest.junit").exists() else []
    counts = tally(cases, read_patterns(pathlib.Path(may_skip)))
    if not cases:
        print("no test ran")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 0 if cases and counts["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

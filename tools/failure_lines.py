#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What went wrong, out of a long log:  failure_lines.py LOG

First each place that tells of a failure (of a compiler, GoogleTest, a script of ours, a sanitizer) with the lines around
it, below the name of its test where ctest gave one; then the log's end.  A line is shown once.
"""
import pathlib
import re
import sys

MARKS = re.compile(r"error: |FAILED: |: Failure$|ERROR: (\w+Sanitizer|libFuzzer)|^SUMMARY: |WARNING: ThreadSanitizer"
                   r"|runtime error: |^FAILED|^FAIL: |^Traceback |^terminate called|SIG(SEGV|ABRT|ILL|BUS)|a bug: "
                   r"|No tests were found")
# "12/80 Test  #3: engine_test ........***Failed    0.52 sec"
HEADING = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) .*\*\*\*")
BEFORE, AFTER = 3, 20
MOST, END = 200, 40


def shown(lines):
    """Numbers of the lines around the marks, at most MOST, and of the end."""
    chosen = set()
    for number, line in enumerate(lines):
        if HEADING.search(line):
            chosen.add(number)
        elif MARKS.search(line):
            chosen.update(range(max(number - BEFORE, 0), min(number + AFTER + 1, len(lines))))
    first = sorted(chosen)[:MOST]
    return first, [number for number in range(max(len(lines) - END, 0), len(lines)) if number not in first]


def report(text):
    lines = text.splitlines()
    marked, end = shown(lines)
    out, last = [], None
    for number in marked:
        if last is not None and number != last + 1:
            out.append("[...]")
        out.append(lines[number])
        last = number
    if end:
        out += ["[the end of the log]"] + [lines[number] for number in end]
    return "\n".join(out)


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    print(report(pathlib.Path(arguments[0]).read_text(errors="replace")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

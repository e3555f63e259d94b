#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps README's table of figures equal to docs/measured/*.json:  readme_table.py [--write]

Each file holds one figure or a list of them.  A figure has the keys of KEYS; `kind` says on what it was measured.
Without --write it ends with 1 if README differs.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: made by tools/readme_table.py -->\n", "<!-- end of figures -->\n"
KEYS = ["name", "value", "unit", "target", "command", "machine", "commit", "date", "kind"]
KINDS = ["shaped links", "loopback", "simulated", "one core"]


def read_figures(folder):
    figures = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for figure in content if isinstance(content, list) else [content]:
            if sorted(figure) != sorted(KEYS) or figure["kind"] not in KINDS:
                raise ValueError(f"{path.name}: a figure has exactly the keys {KEYS}, and a kind of {KINDS}")
            figures.append(figure)
    return figures


def table(figures):
    if not figures:
        return "No figures have been published yet.\n"
    lines = []
    # One table for all that was measured together, under a line that says how.
    for how in dict.fromkeys(map(origin, figures)):
        lines += [how, "", "| what | measured | target |", "|---|---|---|"]
        lines += [f'| {f["name"]} | {f["value"]} {f["unit"]} | {f["target"]} |' for f in figures if origin(f) == how]
        lines.append("")
    return "\n".join(lines)


def origin(figure):
    return (f'`{figure["command"]}`, measured on {figure["kind"]}, {figure["date"]}, {figure["machine"]}, '
            f'commit {figure["commit"]}:')


def with_table(readme, figures):
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return before + BEGIN + table(figures) + END + after


def main(arguments):
    path = ROOT / "README.md"
    old = path.read_text()
    new = with_table(old, read_figures(ROOT / "docs" / "measured"))
    if "--write" in arguments:
        path.write_text(new)
    elif new != old:
        print("README.md differs from docs/measured: run tools/readme_table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

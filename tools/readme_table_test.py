#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of readme_table.py, and that README's table is the one of docs/measured."""
import json
import pathlib
import tempfile
import unittest

import readme_table

FIGURE = {"name": "all-reduce", "value": 0.97, "unit": "of goodput", "target": "0.97", "command": "bench/x",
          "machine": "2 cores", "commit": "abc", "date": "2026-01-01", "kind": "loopback"}


class ReadmeTable(unittest.TestCase):
    def read(self, content):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "a.json").write_text(json.dumps(content))
            return readme_table.read_figures(pathlib.Path(folder))

    def test_readme_is_up_to_date(self):
        self.assertEqual(readme_table.main([]), 0)

    def test_a_figure_becomes_a_row_in_its_place(self):
        readme = "before\n" + readme_table.BEGIN + "old\n" + readme_table.END + "after\n"
        new = readme_table.with_table(readme, self.read(FIGURE))
        self.assertTrue(new.startswith("before\n") and new.endswith("after\n"))
        self.assertNotIn("old", new)
        self.assertIn("`bench/x`, measured on loopback, 2026-01-01, 2 cores, commit abc:\n", new)
        self.assertIn("| what | measured | target |\n", new)
        self.assertIn("| all-reduce | 0.97 of goodput | 0.97 |\n", new)

    def test_what_was_measured_together_stands_together(self):
        figures = self.read([FIGURE, FIGURE | {"name": "other", "commit": "def"}, FIGURE | {"name": "third"}])
        table = readme_table.table(figures)
        self.assertEqual(table.count("| what |"), 2)
        self.assertLess(table.index("third"), table.index("other"))

    def test_a_figure_without_a_command_or_a_kind_is_refused(self):
        for broken in [{k: v for k, v in FIGURE.items() if k != "command"}, FIGURE | {"kind": "felt"}]:
            with self.assertRaises(ValueError):
                self.read([FIGURE, broken])


if __name__ == "__main__":
    unittest.main()

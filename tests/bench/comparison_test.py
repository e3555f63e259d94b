#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the comparisons share, bench/rig/comparison.py, as far as it needs no rig."""
import contextlib
import io
import json
import pathlib
import tempfile
import time
import unittest

from loading import load

from rig import comparison

TABLE = load("tools/readme_table.py")


def ends(pid, seconds=20):
    """Whether the process ends; a zombie that nobody has waited for yet is as good as gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


class Verdict(unittest.TestCase):
    def test_a_missed_target_is_said_and_counts(self):
        figures = [{"name": "a", "value": "1", "target": ">= 2", "met": False}, {"name": "b", "value": "2"}]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertFalse(comparison.verdict(figures))
        self.assertEqual(out.getvalue(), "a: 1 (target: >= 2, MISSED)\nb: 2\n")
        self.assertEqual(figures, [{"name": "a", "value": "1", "target": ">= 2"}, {"name": "b", "value": "2"}])

    def test_what_is_met_or_only_reported_counts(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(comparison.verdict([{"name": "a", "value": "3", "target": ">= 2", "met": True}]))
            self.assertTrue(comparison.verdict([{"name": "a", "value": "3", "unit": "ms"}]))


class Commands(unittest.TestCase):
    def test_output_comes_back_and_variables_go_along(self):
        self.assertEqual(comparison.run(["sh", "-c", "echo $WORD"], WORD="here"), "here\n")

    def test_a_failure_says_what_and_why(self):
        with self.assertRaises(comparison.Broken) as caught:
            comparison.run(["sh", "-c", "echo the reason >&2; exit 5"])
        self.assertIn("ended with 5: the reason", str(caught.exception))

    def test_what_takes_too_long_is_ended_with_its_children(self):
        with tempfile.TemporaryDirectory() as folder:
            child = pathlib.Path(folder) / "child"
            with self.assertRaises(comparison.Broken) as caught:
                comparison.run(["sh", "-c", f"sleep 60 & echo $! > {child}; wait"], timeout=0.5)
            self.assertIn("took more than 0.5 s", str(caught.exception))
            self.assertTrue(ends(int(child.read_text())))

    def test_without_a_verdict_the_code_is_3(self):
        def broken():
            raise comparison.Broken("no rig")

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(comparison.conclude("x.py", broken), 3)
        self.assertEqual(said.getvalue(), "x.py: no rig\n")
        self.assertEqual(comparison.conclude("x.py", lambda: 1), 1)


class Locks(unittest.TestCase):
    def test_bytes_that_pass_beside_the_links_are_noticed(self):
        comparison.check_links({"link_mb": [50, 46]}, 100)
        with self.assertRaises(comparison.Broken):
            comparison.check_links({"link_mb": [50, 44]}, 100)


class Figures(unittest.TestCase):
    def test_ratio_of_medians_lies_in_its_interval(self):
        middle, low, high = comparison.ratio([118, 120, 122, 119, 121], [99, 100, 101, 100, 100])
        self.assertAlmostEqual(middle, 1.2)
        self.assertTrue(1.15 < low <= middle <= high < 1.25, (low, high))

    def test_rounds_that_drift_together_agree(self):
        mean, low, high = comparison.mean_of_rounds([110, 220, 99], [100, 200, 90])
        for value in (mean, low, high):
            self.assertAlmostEqual(value, 1.1)
        with self.assertRaises(ValueError):
            comparison.mean_of_rounds([1, 2], [1])

    def test_the_command_is_said_without_files_of_this_machine(self):
        self.assertEqual(comparison.command_line(["/a/bench/train.py", "--program", "/tmp/x", "--rounds", "7", "--raw=/tmp/y",
                                                  "--write"]), "bench/train.py --rounds 7 --write")
        self.assertEqual(comparison.command_line(["./allreduce.py", "rig", "--stretto", "b/cli/stretto"]),
                         "bench/allreduce.py rig")

    def test_published_figures_have_the_keys_of_the_readme(self):
        for figure in comparison.complete([{"name": "a", "value": 1}], "loopback"):
            self.assertEqual(sorted(figure), sorted(TABLE.KEYS))

    def test_results_are_kept_one_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "raw"
            kept = comparison.Results(str(path))
            self.assertEqual(kept.keep("ddp", {"median_ms": 5}), {"median_ms": 5})
            kept.keep("ours", {"median_ms": 4})
            self.assertEqual([json.loads(line)["kind"] for line in path.read_text().splitlines()], ["ddp", "ours"])


if __name__ == "__main__":
    unittest.main()

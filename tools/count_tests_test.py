#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of count_tests.py: what must not pass does not."""
import contextlib
import io
import pathlib
import tempfile
import unittest

import count_tests

PASS = '<testcase name="Adds" classname="Sum" status="run" result="completed"/>'
FAIL = '<testcase name="Rounds" classname="Sum" status="run"><failure message="1 != 2"/></testcase>'
SKIP = '<testcase name="Flies" classname="Sum" status="run"><skipped message="no wings"/></testcase>'


class CountTests(unittest.TestCase):
    def run_with(self, entries, programs=(), may_skip=""):
        """Returns the exit code and the last line for faked results."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if entries is not None:
                (folder / "ctest.junit").write_text(f"<testsuite>{entries}</testsuite>")
            for name, cases in dict(programs).items():
                (folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
            (folder / "may-skip.txt").write_text(may_skip)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = count_tests.main(folder, folder / "may-skip.txt")
            return code, out.getvalue().splitlines()[-1]

    def test_cases_of_a_program_are_counted(self):
        entries = '<testcase name="sum_test" status="run"/><testcase name="script" status="run"/>'
        self.assertEqual(self.run_with(entries, {"sum_test": PASS * 3}), (0, "4 passed, 0 failed, 0 skipped"))

    def test_a_failing_case_fails(self):
        entries = '<testcase name="sum_test" status="fail"><failure message="Failed"/></testcase>'
        self.assertEqual(self.run_with(entries, {"sum_test": PASS + FAIL}), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_skip_fails_unless_it_is_allowed(self):
        entries = '<testcase name="sum_test" status="run"/>'
        self.assertEqual(self.run_with(entries, {"sum_test": PASS + SKIP}), (1, "1 passed, 1 failed, 0 skipped"))
        allowed = "Sum.Fl*  # a machine without wings\n"
        self.assertEqual(self.run_with(entries, {"sum_test": PASS + SKIP}, allowed), (0, "1 passed, 0 failed, 1 skipped"))

    def test_a_skipped_ctest_entry_fails_unless_it_is_allowed(self):
        entries = '<testcase name="rig" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>'
        self.assertEqual(self.run_with(entries), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.run_with(entries, may_skip="rig"), (0, "0 passed, 0 failed, 1 skipped"))

    def test_a_disabled_case_is_a_skip(self):
        entries = '<testcase name="sum_test" status="run"/>'
        disabled = '<testcase name="DISABLED_Old" classname="Sum" status="notrun" result="suppressed"/>'
        self.assertEqual(self.run_with(entries, {"sum_test": disabled}), (1, "0 passed, 1 failed, 0 skipped"))

    def test_a_crash_fails_with_and_without_results(self):
        entries = '<testcase name="sum_test" status="fail"><failure message="SEGFAULT"/></testcase>'
        self.assertEqual(self.run_with(entries), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.run_with(entries, {"sum_test": PASS}), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.run_with(entries, {"sum_test": "<torn"}), (1, "0 passed, 1 failed, 0 skipped"))

    def test_no_test_at_all_fails(self):
        self.assertEqual(self.run_with(""), (1, "0 passed, 0 failed, 0 skipped"))
        self.assertEqual(self.run_with(None), (1, "0 passed, 0 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()

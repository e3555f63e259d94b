#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of failure_lines.py: causes come before the end of a log, which often hides them."""
import unittest

import failure_lines

NOISE = [f"[       OK ] Suite.Case{i} (0 ms)" for i in range(300)]
HEADING = " 7/80 Test  #7: engine_test ..................***Failed    0.52 sec"


class FailureLines(unittest.TestCase):
    def check(self, cause):
        """The cause of the middle of a log comes first, with its test and surroundings, and then the end."""
        lines = [*NOISE, HEADING, *NOISE, "just before", cause, "just after", *NOISE, "99% tests passed"]
        report = failure_lines.report("\n".join(lines)).splitlines()
        self.assertEqual(report[0], HEADING)
        self.assertLess(report.index("just before"), report.index(cause))
        self.assertLess(report.index(cause), report.index("just after"))
        self.assertEqual(report[-1], "99% tests passed")
        self.assertLess(len(report), 80)

    def test_each_kind_of_failure_is_found(self):
        for cause in ["src/engine/engine_test.cc:12: Failure", "==1==ERROR: AddressSanitizer: heap-use-after-free on 0x1",
                      "WARNING: ThreadSanitizer: data race (pid=1)", "a.cc:3:5: runtime error: shift exponent 64 is too large",
                      "src/a.cc:3:1: error: expected ';'", "FAILED: exit code 1 instead of 0: stretto run", "FAIL: test_x (__main__.X)",
                      "==1==ERROR: LeakSanitizer: detected memory leaks", "terminate called after throwing",
                      "==1== ERROR: libFuzzer: deadly signal", "SUMMARY: libFuzzer: timeout"]:
            with self.subTest(cause):
                self.check(cause)

    def test_a_log_without_a_mark_is_its_end(self):
        report = failure_lines.report("\n".join(NOISE)).splitlines()
        self.assertEqual(report, ["[the end of the log]", *NOISE[-failure_lines.END:]])

    def test_many_failures_are_cut(self):
        report = failure_lines.report("\n".join(["x.cc:1: Failure", *NOISE[:50]] * 40)).splitlines()
        self.assertLess(len(report), failure_lines.MOST + failure_lines.END + 50)


if __name__ == "__main__":
    unittest.main()

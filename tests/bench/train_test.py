#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/train.py that need no rig."""
import argparse
import unittest

from loading import load

train = load("bench/train.py")

WORK = {"model": "resnet18", "ranks": 2, "batch": 16, "steps": 10, "warmup": 3, "gradient_mb": 44.7,
        "optimizer": "sgd 0.02 0.9", "zero_grad": "none", "threads": 1}


class SameWork(unittest.TestCase):
    def test_equal_work_counts(self):
        train.check_same_work({**WORK, "median_ms": 5}, {**WORK, "median_ms": 6, "bucket_mb": 4})

    def test_each_difference_is_named(self):
        for key in WORK:
            for peer in ({**WORK, key: "another"}, {k: v for k, v in WORK.items() if k != key}):
                with self.assertRaises(train.Broken) as caught:
                    train.check_same_work(WORK, peer)
                self.assertIn(f"{key}: ours {WORK[key]}", str(caught.exception))


class Figures(unittest.TestCase):
    def test_figures_are_medians_and_say_what_they_are_of(self):
        runs = {"ddp": [{"median_ms": t} for t in (1210, 1190, 1200, 1200, 1180, 1220)],
                "ours": [{**WORK, "median_ms": t, "exposed_ms": 30} for t in (1000, 960, 1200)]}
        options = argparse.Namespace(model="resnet18", hosts=2, rate="1gbit")
        ratio, rounds, step, exposed = train.figures_of(options, runs, 25, 125e6)
        self.assertTrue(ratio["value"].startswith("1.200 ("), ratio)
        self.assertTrue(rounds["value"].startswith("1.150 ("), rounds)  # of 1.2, 1.25 and 1.0
        self.assertEqual(step["value"], "1000 (1200)")
        self.assertEqual(exposed["value"], "30")
        self.assertIn("of 358 ms of transfer", exposed["name"])


if __name__ == "__main__":
    unittest.main()

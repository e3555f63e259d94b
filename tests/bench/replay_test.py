#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/replay.py that need no rig."""
import argparse
import json
import pathlib
import tempfile
import unittest

from loading import load

replay = load("bench/replay.py")
TABLE = load("tools/readme_table.py")


def honest():
    return {"mismatches": 0, "verified_steps": 3, "slept_ms": 400.1, "compute_ms": 400, "median_ms": 410, "total_ms": 4100,
            "steps": 10, "ranks": 4, "gradient_mb": 10, "wire_mb": 15.1, "wire_mb_total_by_rank": [200, 200, 200, 200],
            "link_mb": [202, 203, 201, 200]}


class CheckRun(unittest.TestCase):
    def test_an_honest_run_counts(self):
        result = honest()
        replay.check_run(result)
        self.assertAlmostEqual(result["total_over_median"], 1)

    def test_each_lie_is_refused(self):
        for lie, says in [({"mismatches": 1}, "1 mismatches"), ({"verified_steps": 2}, "2 verified"),
                          ({"slept_ms": 399}, "slept 399"), ({"wire_mb": 7}, "7.00 MB a step"),
                          ({"link_mb": [202, 10, 201, 200]}, "rank 1 reports"), ({"link_mb": [202, 203, 201, 250]}, "rank 3")]:
            with self.assertRaises(replay.Broken) as caught:
                replay.check_run({**honest(), **lie})
            self.assertIn(says, str(caught.exception))


class FirstChunks(unittest.TestCase):
    def trace(self, chunk_at, chunk):
        def ready(parameter, at):
            return {"name": f"ready layer{parameter}", "ph": "i", "ts": at, "args": {"step": 1, "id": parameter}}

        events = [{"ph": "M", "name": "process_name"}, ready(0, 1000), ready(1, 1500), ready(2, 9000),
                  {"name": "taken layer0", "ph": "b", "ts": 1000, "args": {"step": 1, "id": 0}},
                  {"name": "chunk 1", "ph": "b", "ts": 9100, "args": {"step": 1, "id": 1}},
                  {"name": f"chunk {chunk}", "ph": "b", "ts": chunk_at, "args": {"step": 1, "id": chunk}},
                  {"name": f"chunk {chunk}", "ph": "e", "ts": chunk_at + 5, "args": {"step": 1, "id": chunk}}]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace"
            path.write_text(json.dumps(events))
            return replay.first_chunks(path)

    def test_delay_counts_from_the_output_layers_last_gradient(self):
        self.assertEqual(self.trace(1800, 0), [
            {"chunk": 0, "at": 1800, "ready": 1500, "after_ready_ms": 0.3, "after_first_ms": 0.8}])

    def test_another_chunk_that_came_first_is_seen(self):
        self.assertEqual(self.trace(1800, 4)[0]["chunk"], 4)


    def test_first_bytes_are_those_of_data_connections_after_the_hand_over(self):
        chunks = [{"at": 1800, "ready": 1500}, {"at": 9000, "ready": 9000}]
        packets = [[1700, 9000, 40000, 40001], [1900, 9000, 29555, 40001], [2000, 64, 40000, 40001], [2500, 8000, 40000, 40001]]
        self.assertEqual(replay.first_bytes(chunks, packets, 29555), [(0.5, 1.0), (None, None)])


class Figures(unittest.TestCase):
    def test_published_figures_have_the_keys_of_the_readme(self):
        runs = {name: [{**honest(), "total_over_median": 1, "cpu_s": 1}] for name in ("backward", "sequential", "per parameter")}
        runs["ddp"] = [{"median_ms": 500}]
        traced = {"first_chunk_is_output_layer": True, "first_chunk_delay_ms": 0.1, "first_chunk_after_first_gradient_ms": 1,
                  "first_byte_delay_ms": 0.3, "first_byte_delay_max_ms": 0.9, "first_data_delay_ms": 0.3}
        options = argparse.Namespace(hosts=4, rate="500mbit", profile="resnet50.bk.log")
        figures = replay.figures_of(options, 0.15, 60e6, 4, runs, traced)
        self.assertAlmostEqual(figures["transfer_ms"], 250)
        self.assertAlmostEqual(figures["step_over_limit"], 410 / 400)
        self.assertIn("500 (4 MB)", replay.table([figures]))
        for entry in replay.published(options, [figures]):
            self.assertEqual(sorted(entry), sorted(TABLE.KEYS))
            self.assertIn(entry["kind"], TABLE.KINDS)
        self.assertTrue(replay.holds(figures))
        for missed in ({"ddp_over_ours": (0.98, 0.9, 1.1)}, {"first_chunk_is_output_layer": False}, {"first_byte_delay_ms": 1.2}):
            self.assertFalse(replay.holds({**figures, **missed}), missed)


if __name__ == "__main__":
    unittest.main()

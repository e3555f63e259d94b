#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/convergence.py makes of its runs, and the text that it unpacks, without a run."""
import pathlib
import struct
import tempfile
import unittest

from loading import load

from rig import comparison, plain_text

CONVERGENCE = load("bench/convergence.py")
CNN, TEXT = CONVERGENCE.MODELS["cnn"], CONVERGENCE.MODELS["transformer"]


def runs(accuracies):
    return [{"accuracy": value, "test_loss": value, "weight_hash": number} for number, value in enumerate(accuracies)]


class Differences(unittest.TestCase):
    def test_pairs_by_seed(self):
        found = CONVERGENCE.difference(CNN, runs([0.90, 0.80]), runs([0.91, 0.78]))
        self.assertAlmostEqual(found.gains[0], -1)
        self.assertAlmostEqual(found.gains[1], 2)
        self.assertAlmostEqual(found.mean, 0.5)
        self.assertAlmostEqual(found.two_errors, 3)

    def test_a_larger_loss_is_worse_in_percent_of_float32s(self):
        found = CONVERGENCE.difference(TEXT, runs([2.02, 2.04]), runs([2.0, 2.0]))
        self.assertAlmostEqual(found.mean, -1.5)

    def test_within_is_the_margin_or_two_standard_errors(self):
        self.assertEqual(CONVERGENCE.Difference((-0.3, -0.3)).verdict(0.3), "within")
        self.assertEqual(CONVERGENCE.Difference((-0.31, -0.31)).verdict(0.3), "worse")
        self.assertEqual(CONVERGENCE.Difference((0.31, 0.31)).verdict(0.3), "better")
        self.assertEqual(CONVERGENCE.Difference((-2.0, 1.0)).verdict(0.3), "within")
        self.assertEqual(CONVERGENCE.Difference((-2.0, -1.0)).verdict(0.3), "worse")

    def test_seeds_stand_beside_the_mean(self):
        self.assertEqual(CONVERGENCE.Difference((-1.0, 0.0)).text(), "-0.50 (-1.50 to +0.50; seeds -1.00, +0.00)")


class Figures(unittest.TestCase):
    def figures(self, sparse, without, model=CNN, coded=0.899):
        made = CONVERGENCE.figures_of("cnn", model, {"none": runs([0.9, 0.9]), "int8": runs([coded] * 2),
                                                     "topk:0.1%": runs([sparse] * 2),
                                                     "topk:0.1%:feedback=off": runs([without] * 2)})
        self.assertEqual(len(made), 5)
        return made

    def test_all_is_met(self):
        figures = self.figures(0.899, 0.88)
        self.assertEqual(figures[0]["value"], "90.00")
        self.assertTrue(figures[1]["met"])
        self.assertNotIn("met", figures[2], "no default of its codec")
        self.assertNotIn("met", figures[3], "the one that must fail is held to nothing itself")
        self.assertTrue(figures[4]["met"])

    def test_a_codec_that_is_worse_is_not(self):
        self.assertFalse(self.figures(0.89, 0.88, coded=0.89)[1]["met"])

    def test_one_that_is_better_is(self):
        self.assertTrue(self.figures(0.95, 0.88, coded=0.95)[1]["met"])

    def test_feedback_that_makes_no_difference_is_not(self):
        self.assertFalse(self.figures(0.899, 0.8895)[4]["met"])

    def test_the_loss_of_a_text_only_shows_feedback(self):
        self.assertNotIn("met", self.figures(0.899, 0.88, TEXT)[4])

    def test_a_codec_that_was_not_used_is_no_result(self):
        with self.assertRaisesRegex(comparison.Broken, "fp16.*not used"):
            CONVERGENCE.need_use("fp16", runs([0.9]), runs([0.8]))


def packed(pieces):
    """A file as bible-kjv-text has it."""
    begin = plain_text.HEADER + 8 + 4 * len(pieces)
    begins = []
    for piece in pieces:
        begins.append(begin)
        begin += len(piece)
    return b"EC02".ljust(plain_text.HEADER, b"\0") + struct.pack(f">II{len(pieces)}I", 65536, len(pieces), *begins) + b"".join(pieces)


class PlainText(unittest.TestCase):
    # "ab" and "cd" as compress(1) packs them, without the beginning: codes of nine bits.
    PIECES = [struct.pack("<I", ord("a") | ord("b") << 9)[:3], struct.pack("<I", ord("c") | ord("d") << 9)[:3]]

    def test_pieces_are_joined(self):
        self.assertEqual(plain_text.unpack(packed(self.PIECES)), b"abcd")

    def test_another_file_is_refused(self):
        for wrong in [b"", b"XX" + packed(self.PIECES)[2:], packed([b"\xff\xff\xff\xff"])]:
            with self.assertRaises((ValueError, struct.error)):
                plain_text.unpack(wrong)

    def test_what_is_missing_is_said(self):
        with self.assertRaisesRegex(RuntimeError, "install Debian's package bible-kjv-text"):
            plain_text.write("/nowhere/text", pathlib.Path("/nowhere/bible.data"))

    def test_too_little_text_is_not_written(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder) / "data", pathlib.Path(folder) / "text"
            source.write_bytes(packed(self.PIECES))
            with self.assertRaisesRegex(RuntimeError, "4 characters only"):
                plain_text.write(target, source)
            self.assertFalse(target.exists())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the text of Debian's package bible-kjv-text, which has it packed, as a plain file: plain_text.py FILE

The package's one file is a header of 0x54 bytes, the length of a piece and how many there are, where each begins (32 bits,
big-endian), and the pieces, packed by compress(1) without the three bytes that such a file begins with.
"""
import pathlib
import struct
import subprocess
import sys

PACKED = pathlib.Path("/usr/lib/bible.data")
HEADER = 0x54
BEGINNING = b"\x1f\x9d\x90"
LEAST_CHARACTERS = 4_000_000


def unpack(packed):
    """The text; ValueError for what is not such a file."""
    if not packed.startswith(b"EC02"):
        raise ValueError("it does not begin as one")
    _, count = struct.unpack_from(">II", packed, HEADER)
    begins = [*struct.unpack_from(f">{count}I", packed, HEADER + 8), len(packed)]
    return b"".join(unpack_piece(packed[begin:end]) for begin, end in zip(begins, begins[1:]))


def unpack_piece(piece):
    gzip = subprocess.run(["gzip", "-dc"], input=BEGINNING + piece, capture_output=True, check=False)
    if gzip.returncode != 0:
        raise ValueError(gzip.stderr.decode(errors="replace").strip())
    return gzip.stdout


def write(path, packed_path=PACKED):
    """Writes the text to `path`, unless it is there.  RuntimeError says what is missing or wrong."""
    path = pathlib.Path(path)
    if path.exists():
        return
    try:
        text = unpack(packed_path.read_bytes())
    except OSError as problem:
        raise RuntimeError(f"cannot read {packed_path}: {problem.strerror}; install Debian's package bible-kjv-text") from None
    except (ValueError, struct.error) as problem:
        raise RuntimeError(f"{packed_path} is not the file of bible-kjv-text that is known here: {problem}") from None
    if len(text) < LEAST_CHARACTERS:
        raise RuntimeError(f"{packed_path} has a text of {len(text)} characters only")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        write(sys.argv[1])
    except RuntimeError as wrong:
        sys.exit(f"plain_text.py: {wrong}")

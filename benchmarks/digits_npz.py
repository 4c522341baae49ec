"""Digits drawn as the embedded ones, by other writers, as one .npz file: 60 train, 60 test.

    python benchmarks/digits_npz.py digits.npz
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from data.glyphs import FONT
from data.load import glyphs

# The embedded digits have seed 1, and 15 test writers. A writer draws each digit ten times.
np.savez(sys.argv[1], **glyphs(FONT[:10], 60, 60, copies=10, sloppiness=1.3, seed=3))

"""Fails unless the params of two files lie this far apart, as one vector: FIRST SECOND DISTANCE."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "oracles"))
import safetensors_np as st  # noqa: E402

first, second = st.load(sys.argv[1]), st.load(sys.argv[2])
moved = np.sqrt(sum(np.sum((second[n].astype(np.float64) - first[n]) ** 2) for n in first))
assert abs(moved - float(sys.argv[3])) < 1e-4 * moved, moved

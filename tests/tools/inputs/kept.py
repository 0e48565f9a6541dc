"""FIRST SECOND NAME.. -- NAME..: the first names have the same bits in both files, the others do not."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "oracles"))
import safetensors_np as st  # noqa: E402

first, second = st.load(sys.argv[1]), st.load(sys.argv[2])
cut = sys.argv.index("--")
for name in sys.argv[3:cut]:
    assert first[name].tobytes() == second[name].tobytes(), f"{name} has moved"
for name in sys.argv[cut + 1:]:
    assert not np.array_equal(first[name], second[name]), f"{name} has not moved"

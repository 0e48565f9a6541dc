"""Fails unless the learning rates of `cleave train --json`, on stdin, are those of the arguments."""

import json
import sys

found = [json.loads(line)["lr"] for line in sys.stdin if '"step"' in line]
wanted = [float(text) for text in sys.argv[1:]]
assert len(found) == len(wanted), found
assert all(abs(f - w) <= 1e-15 for f, w in zip(found, wanted)), found

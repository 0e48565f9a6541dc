"""tensors.py FILE NAME=SIZExSIZE...: writes float32 tensors that count up from 0."""
import json
import math
import struct
import sys

header, data = {}, b""
for word in sys.argv[2:]:
    name, sizes = word.split("=")
    shape = [int(size) for size in sizes.split("x") if size]
    values = struct.pack(f"<{math.prod(shape)}f", *range(math.prod(shape)))
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    data += values
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)

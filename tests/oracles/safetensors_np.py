"""A minimal safetensors reader and writer: Python 3 and NumPy only.

load(path) -> {name: array}; bfloat16 comes back as float32 (exact).
save(path, {name: array}, metadata): tensors in name order, so equal content gives equal bytes.
Raises ValueError on a file that is not well formed.
"""

import json
import struct

import numpy as np

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}
_NAMES = {np.dtype(t): n for n, t in _TYPES.items() if n != "BF16"}
_HEADER_LIMIT = 100_000_000


def _unique(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice in the header")
    return result


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8:
        raise ValueError(f"{path}: too short for a safetensors file")
    (size,) = struct.unpack_from("<Q", data)
    if size > _HEADER_LIMIT or size > len(data) - 8:
        raise ValueError(f"{path}: the header's size {size} does not fit the file")
    try:
        header = json.loads(data[8:8 + size].decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: the header is not an object")
    body = memoryview(data)[8 + size:]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape = entry["dtype"], entry["shape"]
            begin, end = entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: {name} has no type, shape and offsets") from None
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(f"{path}: {name} has a bad shape or offsets")
        if kind not in _TYPES:
            raise ValueError(f"{path}: {name} has the unknown type {kind}")
        dtype = np.dtype(_TYPES[kind])
        count = 1
        for extent in shape:
            count *= extent
        if not begin <= end <= len(body) or end - begin != count * dtype.itemsize:
            raise ValueError(f"{path}: {name} has bad offsets [{begin}, {end})")
        array = np.frombuffer(body[begin:end], dtype=dtype).reshape(shape)
        if kind == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array
    return tensors


def save(path, tensors, metadata=None):
    header, chunks, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = {key: str(value) for key, value in metadata.items()}
    # Wide types first keeps every tensor aligned to its own size.
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    for name in sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n)):
        array = arrays[name]
        kind = _NAMES[array.dtype]
        chunk = array.astype(_TYPES[kind]).tobytes()  # C order; tobytes keeps 0-d shapes apart
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(chunk)],
        }
        chunks.append(chunk)
        offset += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))

#!/usr/bin/env python3
"""Tests of compare.py and safetensors_np.py, and of the committed files' own agreement."""

import contextlib
import io
import json
import os
import pathlib
import struct
import tempfile
import unittest

import numpy as np

import compare
import safetensors_np

HERE = pathlib.Path(__file__).parent


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, **tensors):
        path = os.path.join(self.folder, name)
        safetensors_np.save(path, {k.replace("__", "."): np.asarray(v) for k, v in tensors.items()})
        return path

    def run_main(self, *arguments):
        self.output = io.StringIO()
        with contextlib.redirect_stdout(self.output), contextlib.redirect_stderr(self.output):
            return compare.main([str(a) for a in arguments])

    def test_float64_rule(self):
        a = self.file("a", x=[1.0, -100.0, 1e-9])
        self.assertEqual(self.run_main(a, self.file("b", x=[1.0, -100.0, 1.9e-9])), 0)
        self.assertEqual(self.run_main(a, self.file("b", x=[1.0, -100.0, 2.1e-9])), 3)
        self.assertIn("[2]", self.output.getvalue())
        self.assertEqual(self.run_main(a, self.file("b", x=[1.0, -99.0, 1e-9]), "--rtol", 0.02), 0)

    def test_float32_rule(self):
        a = self.file("a", x=[1.0, 2.0])
        one = self.file("one", x=np.float32([1.0, 2.00001]))
        self.assertEqual(self.run_main(a, one), 1)  # neither --one-rank nor --rtol
        near = self.file("near", x=np.float32([1.000035, 2.0]))
        far = self.file("far", x=np.float32([1.000045, 2.0]))
        self.assertEqual(self.run_main(a, near, "--one-rank", one), 0)
        self.assertEqual(self.run_main(a, far, "--one-rank", one), 3)
        exact = self.file("exact", x=np.float32([1.0, 2.0]))
        ulp = 2.0 ** -22  # of 2.0: the floor is 8 of these
        inside = self.file("inside", x=np.float32([1.0 + 8 * ulp, 2.0]))
        outside = self.file("outside", x=np.float32([1.0 + 9 * ulp, 2.0]))
        self.assertEqual(self.run_main(a, inside, "--one-rank", exact), 0)
        self.assertEqual(self.run_main(a, outside, "--one-rank", exact), 3)

    def test_zero_in_mathematics(self):
        a = self.file("a", grad__w=[1.0], grad__b=[3e-17], logits=[1e6])
        good = self.file("b", grad__w=[1.0], grad__b=[-5e-17], logits=[1e6])
        bad = self.file("c", grad__w=[1.0], grad__b=[1e-10], logits=[1e6])
        self.assertEqual(self.run_main(a, good), 0)
        self.assertEqual(self.run_main(a, good, "--only", "grad.b"), 0)
        self.assertEqual(self.run_main(a, bad), 3)

    def test_atol(self):
        a, b = self.file("a", x=[0.0]), self.file("b", x=[1e-16])
        self.assertEqual(self.run_main(a, b), 3)
        self.assertEqual(self.run_main(a, b, "--atol", 1e-15), 0)

    def test_not_finite(self):
        a = self.file("a", x=[1.0, np.inf, np.nan])
        self.assertEqual(self.run_main(a, a), 0)
        for other in ([1.0, np.inf, 0.0], [1.0, -np.inf, np.nan], [np.nan, np.inf, np.nan],
                      [np.inf, np.inf, np.nan]):
            self.assertEqual(self.run_main(a, self.file("b", x=other)), 3, other)
        finite = self.file("a", x=[1.0, 2.0])
        self.assertEqual(self.run_main(finite, self.file("b", x=[1.0, np.nan])), 3)

    def test_structure(self):
        a = self.file("a", x=[1.0, 2.0])
        self.assertEqual(self.run_main(a, self.file("b", y=[1.0, 2.0])), 3)
        self.assertEqual(self.run_main(a, self.file("b", x=[[1.0, 2.0]])), 3)
        more = self.file("b", x=[1.0, 2.0], y=[1.0])
        self.assertEqual(self.run_main(a, more), 0)
        self.assertEqual(self.run_main(a, more, "--both"), 3)
        self.assertEqual(self.run_main(more, a, "--skip", "y"), 0)
        self.assertEqual(self.run_main(a, self.file("b", p__x=[1.0, 2.0]), "--rename", "^p\\.="), 0)
        self.assertEqual(self.run_main(a, a, "--only", "z"), 1)

    def test_exact(self):
        a = self.file("a", x=[0.0], i=np.int32([3]))
        self.assertEqual(self.run_main(a, self.file("b", x=[-0.0], i=np.int32([3]))), 0)
        self.assertEqual(self.run_main(a, self.file("b", x=[-0.0], i=np.int32([3])), "--exact"), 3)
        self.assertEqual(self.run_main(a, self.file("b", x=[0.0], i=np.int32([4]))), 3)

    def test_bad_files(self):
        path = pathlib.Path(self.folder, "bad")
        good = self.file("a", x=[1.0])

        def write(header, body=b"\0" * 8):
            text = header.encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + body)

        entry = '"dtype":"F64","shape":[1],"data_offsets"'
        for header in ("{", "[]", "{}" * 2, '{"x":{%s:[0,9]}}' % entry, '{"x":{%s:[8,16]}}' % entry,
                       '{"x":{"dtype":"Q","shape":[1],"data_offsets":[0,8]}}', '{"x":{}}',
                       '{"x":{%s:[0,8]},"x":{%s:[0,8]}}' % (entry, entry)):
            write(header)
            self.assertEqual(self.run_main(good, path), 1, header)
        path.write_bytes(b"\xff" * 9)
        self.assertEqual(self.run_main(good, path), 1)
        self.assertEqual(self.run_main(good, pathlib.Path(self.folder, "absent")), 1)

    def test_bfloat16(self):
        path = pathlib.Path(self.folder, "bf16")
        text = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
        path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<HH", 0x3F80, 0xC000))
        np.testing.assert_array_equal(safetensors_np.load(path)["x"], [1.0, -2.0])


class Committed(unittest.TestCase):
    """The files agree with each other; their values are the subject of the tests that use them."""

    def test_models(self):
        for model in ("gpt2", "grouped"):
            folder = HERE / model
            weights = safetensors_np.load(folder / "weights.safetensors")
            f64 = safetensors_np.load(folder / "expected_f64.safetensors")
            f32 = safetensors_np.load(folder / "expected_f32.safetensors")
            self.assertEqual({f"grad.{n}" for n in weights} | {"logits", "loss", "grad_norm"},
                             set(f64))
            for name, array in weights.items():
                self.assertEqual((array.dtype, array.shape),
                                 (np.float32, f64[f"grad.{name}"].shape))
            rows = compare.compare(f64, f32, rtol=2e-6)
            self.assertTrue(all(row[1] == "ok" for row in rows), rows)
            squares = sum(np.sum(a ** 2) for n, a in f64.items() if n.startswith("grad."))
            self.assertAlmostEqual(float(f64["grad_norm"]), float(np.sqrt(squares)), places=12)

    def test_ops(self):
        tensors = safetensors_np.load(HERE / "ops" / "ops.safetensors")
        listed = set()
        for case in json.loads((HERE / "ops" / "ops.json").read_text())["cases"]:
            dims = {**case["inputs"], "out": case["out"]}
            for name in dims:
                self.assertEqual(tensors[f"{case['name']}/{name}"].ndim, len(dims[name]), case)
            names = list(dims) + [f"grad.{g}" for g in case["gradients"]]
            names += ["cotangent"] * bool(case["gradients"])
            listed |= {f"{case['name']}/{n}" for n in names}
        self.assertEqual(listed, set(tensors))


if __name__ == "__main__":
    unittest.main()

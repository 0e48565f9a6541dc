"""What the cases share: run a model with explicit tensors under a plan, and judge the results.

A test is a Python text with RUN lines; it is called with the cleave program and a scratch path:
    # RUN: %{case} %s %cleave %t
Everything that is expected is computed here with NumPy in float64, never by Cleave.
"""

import json
import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "oracles"))
import safetensors_np as st  # noqa: E402

CLEAVE, SCRATCH = sys.argv[1], sys.argv[2]
F64 = 1e-11  # the equality of float64 results, relative to a tensor's largest magnitude


class Wrong(AssertionError):
    pass


def check(condition, text):
    if not condition:
        raise Wrong(text)


def command(arguments, timeout=60):
    """(exit code, stdout, stderr); dying of a signal is always wrong."""
    done = subprocess.run([str(a) for a in arguments], capture_output=True, timeout=timeout)
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    check(done.returncode >= 0,
          f"ended by signal {-done.returncode}: {' '.join(map(str, arguments))[:300]}\n{err[-500:]}")
    return done.returncode, out, err


def layout(plan, mesh):
    if plan is None:
        return []
    return ["--plan", plan] + (["--mesh", mesh] if mesh else [])


class Model:
    def __init__(self, text, name="model"):
        self.path = f"{SCRATCH}.{name}.cleave"
        with open(self.path, "w") as file:
            file.write(text)

    def call(self, fn, tensors, plan=None, mesh=None, sets=None, dtype="f64", grads=False,
             train=False, fuse=True, more=()):
        """(exit code, stderr, results)."""
        inputs, out = f"{SCRATCH}.in.st", f"{SCRATCH}.out.st"
        st.save(inputs, tensors)
        if os.path.exists(out):
            os.remove(out)
        options = ["--set", ",".join(f"{k}={v}" for k, v in sets.items())] if sets else []
        options += layout(plan, mesh)
        program = self.path
        if not fuse:
            # Only `compile` can leave fusion out.
            program = f"{SCRATCH}.cleavex"
            kind = ["--kind", "grads" if grads else "forward"] + (["--training"] if train else [])
            code, _, err = command([CLEAVE, "compile", self.path, "-o", program, "--fn", fn, "--no-fuse",
                                    "--dtype", dtype, "--quiet", *kind, *options, *more])
            if code:
                return code, err, {}
            options, more = [], ()
        else:
            options += ["--dtype", dtype]
        code, _, err = command([CLEAVE, "run", program, "--fn", fn, "--inputs", inputs, "--out", out,
                                "--quiet", *options, *(["--grads"] if grads else []),
                                *(["--train"] if train and fuse else []), *more])
        return code, err, st.load(out) if code == 0 else {}

    def run(self, fn, tensors, plan=None, mesh=None, **options):
        """{name: array}; fails when Cleave refuses."""
        code, err, results = self.call(fn, tensors, plan, mesh, **options)
        check(code == 0, f"{fn} under {plan} {mesh}: exit code {code}\n{err}")
        return results

    def refused(self, fn, tensors, plan=None, mesh=None, says=(), **options):
        """The message: exit code 1, and it says all of `says`."""
        code, err, _ = self.call(fn, tensors, plan, mesh, **options)
        check(code == 1, f"{fn} under {plan} {mesh}: exit code {code}, expected a refusal (1)\n{err}")
        for word in says:
            check(word in err, f"the refusal does not say '{word}':\n{err}")
        return err


def near(where, got, want, rtol=F64, atol=0.0):
    """Shape, places of NaN and infinity, and values: error <= rtol * largest |want| + atol."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    check(got.shape == want.shape, f"{where}: shape {got.shape}, expected {want.shape}")
    if not want.size:
        return
    special = ~np.isfinite(want)
    check(np.array_equal(got[special], want[special], equal_nan=True) and np.isfinite(got[~special]).all(),
          f"{where}: {got} expected {want}")
    if special.all():
        return
    delta = np.where(special, 0.0, np.abs(np.where(special, 0.0, got) - np.where(special, 0.0, want)))
    bound = rtol * np.abs(want[~special]).max() + atol
    worst = np.unravel_index(int(np.argmax(delta)), want.shape)
    check(delta[worst] <= bound, f"{where}{list(map(int, worst))}: {got[worst]!r}, expected {want[worst]!r}, "
                                 f"error {delta[worst]:.3g} over {bound:.3g}")


def same(where, got, want):
    """Bit for bit."""
    check(set(got) == set(want), f"{where}: {sorted(got)} and {sorted(want)}")
    for name in want:
        a, b = got[name], want[name]
        check(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(),
              f"{where}: {name} is not bit-equal")


def finite(where, results):
    for name, array in results.items():
        check(np.isfinite(array).all(), f"{where}: {name} has a NaN or an infinity")


def meshes(*sizes, axis="tp", plan="tensor"):
    """(plan, mesh) of one rank and then of each size; the plan with an axis of 1 as well."""
    yield None, None
    for size in sizes:
        yield plan, f"{axis}={size}"


def softmax(x, axis=-1):
    with np.errstate(invalid="ignore"):
        top = x.max(axis=axis, keepdims=True)
        e = np.exp(x - np.where(np.isfinite(top), top, 0.0))
        total = e.sum(axis=axis, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def cross_entropy(logits, labels, smoothing=0.0, ignore=-100):
    """(loss, dlogits): the sum over valid labels, divided once; 0 without any."""
    shape, vocab = logits.shape, logits.shape[-1]
    flat, labels = logits.reshape(-1, vocab), np.asarray(labels).reshape(-1)
    valid = labels != ignore
    count = max(int(valid.sum()), 1)
    p = softmax(flat)
    logp = flat - flat.max(-1, keepdims=True)
    logp = logp - np.log(np.exp(logp).sum(-1, keepdims=True))
    target = np.zeros_like(flat)
    target[np.arange(len(labels))[valid], labels[valid]] = 1.0 - smoothing
    target[valid] += smoothing / vocab
    loss = -(target * logp).sum() / count
    return loss, (np.where(valid[:, None], p - target, 0.0) / count).reshape(shape)


def train(model, folder, plan=None, mesh=None, steps=3, batch=4, seq=8, dtype="f64", data=None, more=()):
    """(metrics per step, weights) of `cleave train`."""
    text = f"{SCRATCH}.txt"
    with open(text, "wb") as file:
        file.write(data if data is not None else (b"It was the best of times, it was the worst of times. " * 40))
    out = f"{SCRATCH}.{folder}"
    path = model.path if isinstance(model, Model) else model
    code, _, err = command([CLEAVE, "train", path, "--data", text, "--steps", steps, "--quiet", "--out", out,
                            *(["--batch", batch, "--seq", seq, "--dtype", dtype] if dtype else []),
                            *layout(plan, mesh), *more])
    check(code == 0, f"train under {plan} {mesh}: exit code {code}\n{err}")
    with open(os.path.join(out, "metrics.jsonl")) as file:
        metrics = [json.loads(line) for line in file]
    return metrics, st.load(os.path.join(out, "weights.safetensors"))


def attention(q, k, v, g, seen=True, scale=None):
    """(output, dq, dk, dv) of sum(output * g). q [batch, query, H, depth], k and v [batch, key, KV, depth]; query head
    h reads kv head h * KV // H. `seen` broadcasts to [batch, H, query, key]; a row that sees no key is 0."""
    kv_heads = k.shape[2]
    of = np.arange(q.shape[2]) * kv_heads // q.shape[2]
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.einsum("bqhd,bkhd->bhqk", q, k[:, :, of]) * scale
    p = softmax(np.where(seen, scores, -np.inf))
    dp = np.einsum("bqhd,bkhd->bhqk", g, v[:, :, of])
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    for h, j in enumerate(of):
        dk[:, :, j] += np.einsum("bqk,bqd->bkd", ds[:, h], q[:, :, h])
        dv[:, :, j] += np.einsum("bqk,bqd->bkd", p[:, h], g[:, :, h])
    return (np.einsum("bhqk,bkhd->bqhd", p, v[:, :, of]), np.einsum("bhqk,bkhd->bqhd", ds, k[:, :, of]), dk, dv)


def slopes(loss, params, count=20, h=1e-6, seed=0):
    """{name: (flat indices, central differences)} of `loss(params)` at `count` random entries of each."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, value in params.items():
        chosen = rng.permutation(value.size)[:count]
        slope = np.empty(len(chosen))
        for n, i in enumerate(chosen):
            sides = []
            for sign in (h, -h):
                moved = value.copy()
                moved.reshape(-1)[i] += sign
                sides.append(loss({**params, name: moved}))
            slope[n] = (sides[0] - sides[1]) / (2 * h)
        found[name] = (chosen, slope)
    return found

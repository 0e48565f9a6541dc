#!/usr/bin/env python3
"""Makes ops/: PyTorch's float64 values and gradients of single operations. By hand, never in CI.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python make_ops.py [--out ops]

ops.safetensors holds, per case, `CASE/<input>`, `CASE/out`, `CASE/cotangent` and
`CASE/grad.<input>`: the gradient of sum(out * cotangent). ops.json says for each case the
operation, its settings, the names of the dimensions of every tensor, which inputs have a gradient,
a note where the case has a reason of its own, and `atol` where everything is 0 but for rounding.
Inputs and cotangents are exact in float32 unless `float32_exact` is false. NumPy's PCG64 draws each
case from its own name, so a new case changes no other. Where torch has no value of its own, or not
this policy, the script computes it by the formula written here and checks it against torch where
torch has one:
- attention: out = softmax(scale * q k + bias, over the allowed keys) v, scale = head_dim^-1/2; a
  row with no allowed key is 0 and so are its gradients. Causal query i sees keys
  j <= i + keys - queries.
  Grouped heads are two dimensions of q: [..., kv_heads, group, head_dim]; k and v have kv_heads.
- cross_entropy: the sum over valid labels over their count; 0 with no valid label (torch: NaN).
  Smoothing a as in torch: (1 - a) * -logp[label] + a / V * sum(-logp).
- rope: angle = pos * base^(-2i/d), in float64; pairs (i, i + d/2) or, interleaved, (2i, 2i + 1);
  d is `rotary`, and elements past it are copied.
"""

import argparse
import json
import pathlib
import zlib

import numpy as np
import torch
import torch.nn.functional as F

import safetensors_np

tensors, cases = {}, []


def generator(name):
    return np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))


def draw(rng, *shape, std=1.0, mean=0.0):
    return (mean + std * rng.standard_normal(shape)).astype(np.float32).astype(np.float64)


def case(name, op, inputs, out_dims, function, settings=None, note=None, atol=None):
    """inputs: {name: (dims, array)}; function: torch tensors by name -> torch tensor."""
    leaves = {}
    for key, (dims, array) in inputs.items():
        assert array.ndim == len(dims), (name, key)
        leaf = torch.from_numpy(np.array(array))
        if array.dtype.kind == "f":
            leaf.requires_grad_()
        leaves[key] = leaf
    out = function(**leaves)
    assert out.dim() == len(out_dims), name
    cotangent = draw(generator(name + "/cotangent"), *out.shape)
    if out.dim() == 0:
        cotangent = np.float64(1.0)
    (out * torch.from_numpy(np.asarray(cotangent))).sum().backward()
    entry = {"name": name, "op": op, "settings": settings or {},
             "inputs": {k: list(d) for k, (d, _) in inputs.items()}, "out": list(out_dims),
             "gradients": [k for k, leaf in leaves.items() if leaf.requires_grad]}
    if not all(np.array_equal(a, a.astype(np.float32)) for _, a in inputs.values()
               if a.dtype.kind == "f"):
        entry["float32_exact"] = False
    if atol:
        entry["atol"] = atol
    if note:
        entry["note"] = note
    cases.append(entry)
    for key, (_, array) in inputs.items():
        tensors[f"{name}/{key}"] = np.asarray(array)
    tensors[f"{name}/out"] = out.detach().numpy()
    tensors[f"{name}/cotangent"] = np.asarray(cotangent)
    for key in entry["gradients"]:
        grad = leaves[key].grad.numpy()
        assert np.isfinite(grad).all(), (name, key)
        tensors[f"{name}/grad.{key}"] = grad
    return out.detach()


# Norms ------------------------------------------------------------------------------------------

def norms():
    dims = ("batch", "seq", "width")

    def layer(x, weight, bias):
        return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)

    def rms(x, weight):
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)

    def inputs(name, x, bias):
        rng = generator(name)
        width = x(rng).shape[-1]
        rng = generator(name)
        made = {"x": (dims, x(rng)), "weight": (("width",), draw(rng, width, std=0.4, mean=1.0))}
        if bias:
            made["bias"] = (("width",), draw(rng, width, std=0.5))
        return made

    def constant_rows(rng):
        x = draw(rng, 2, 3, 7)
        x[0, 1] = 0.75
        x[1, 2] = 0.0
        return x

    variants = (
        ("plain", lambda rng: draw(rng, 3, 5, 7), None),
        ("wide", lambda rng: draw(rng, 1, 2, 67), "more than one vector and a tail"),
        ("one", lambda rng: draw(rng, 2, 3, 1), "a dimension of size 1"),
        ("offset", lambda rng: draw(rng, 2, 3, 9, std=0.5, mean=1000.0),
         "a mean far from 0: E[x^2] - E[x]^2 would cancel"),
        ("constant_row", constant_rows, "rows of variance 0: epsilon decides"),
    )
    for kind, function in (("layer_norm", layer), ("rms_norm", rms)):
        for variant, x, note in variants:
            name = f"{kind}.{variant}"
            case(name, kind, inputs(name, x, kind == "layer_norm"), dims, function,
                 {"over": ["width"], "epsilon": 1e-5}, note=note)
        name = f"{kind}.middle"
        made = inputs(name, lambda rng: draw(rng, 2, 5, 6), kind == "layer_norm")
        made["x"] = (("batch", "width", "seq"), np.ascontiguousarray(made["x"][1].swapaxes(1, 2)))

        def middle(x, **rest):
            return function(x.transpose(1, 2), **rest).transpose(1, 2)

        case(name, kind, made, ("batch", "width", "seq"), middle,
             {"over": ["width"], "epsilon": 1e-5}, note="over a dimension that is not the last")


# Elementwise ------------------------------------------------------------------------------------

def activations():
    special = np.array([-1000.0, -88.0, -30.0, -10.0, -6.0, -2.6989, -1.0, -0.5, -1e-3, 1e-3, 0.5,
                        1.0, 2.6989, 6.0, 10.0, 30.0, 88.0, 1000.0])
    x = np.concatenate([special, draw(generator("activations"), 17)])
    x = x.astype(np.float32).astype(np.float64)
    for name, op, function, settings in (
            ("gelu.tanh", "gelu", lambda x: F.gelu(x, approximate="tanh"), {"tanh": True}),
            ("gelu.erf", "gelu", F.gelu, {"tanh": False}),
            ("silu", "silu", F.silu, {}), ("relu", "relu", F.relu, {}),
            ("tanh", "tanh", torch.tanh, {}), ("sigmoid", "sigmoid", torch.sigmoid, {})):
        case(name, op, {"x": (("n",), x)}, ("n",), lambda x, f=function: f(x), settings)
    apart = np.abs(tensors["gelu.tanh/out"] - tensors["gelu.erf/out"]).max()
    assert 4.7e-4 < apart < 4.74e-4, apart  # the two GELUs can be told apart
    zero = {"x": (("n",), np.array([0.0, -0.0]))}
    case("relu.zero", "relu", zero, ("n",), lambda x: F.relu(x), note="the gradient at 0 is 0")


def softmaxes():
    def over(axis):
        return lambda x: torch.softmax(x, axis)

    def make(name, *shape, **kw):
        return draw(generator(name), *shape, **kw)

    dims = ("batch", "seq", "vocab")
    for name, x, note in (
            ("softmax.plain", make("softmax.plain", 2, 3, 7), None),
            ("softmax.one", make("softmax.one", 2, 3, 1), "size 1: all 1, gradient 0"),
            ("softmax.large", make("softmax.large", 2, 2, 9, std=3.0, mean=1e4), "large values"),
            ("softmax.low", make("softmax.low", 2, 2, 9, std=3.0, mean=-1e4),
             "all far below 0: padding with 0 would take everything"),
            ("softmax.spread", make("softmax.spread", 1, 2, 5, std=10.0), "one takes nearly all")):
        case(name, "softmax", {"x": (dims, x)}, dims, over(2), {"over": ["vocab"]}, note=note)
    x = make("softmax.middle", 2, 5, 3)
    case("softmax.middle", "softmax", {"x": (("batch", "vocab", "seq"), x)},
         ("batch", "vocab", "seq"), over(1), {"over": ["vocab"]},
         note="over a dimension that is not the last")


# Cross-entropy ----------------------------------------------------------------------------------

def cross_entropies():
    def make(name, logits, labels, smoothing=0.0, note=None, dims=("batch",), atol=None):
        labels = np.asarray(labels, np.int32)

        def function(logits, labels):
            flat, ids = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long()
            valid = ids != -100
            if not valid.any():
                return (logits * 0.0).sum()
            logp = F.log_softmax(flat, -1)
            nll = -logp.gather(1, torch.where(valid, ids, 0)[:, None])[:, 0]
            each = (1 - smoothing) * nll + smoothing * -logp.mean(-1)
            loss = torch.where(valid, each, 0.0).sum() / valid.sum()
            torch.testing.assert_close(loss, F.cross_entropy(
                flat, ids, ignore_index=-100, label_smoothing=smoothing), rtol=1e-14, atol=1e-14)
            return loss

        return case(name, "cross_entropy",
                    {"logits": ((*dims, "vocab"), logits), "labels": (dims, labels)}, (), function,
                    {"over": "vocab", "ignore": -100, "smoothing": smoothing}, note=note,
                    atol=atol)

    b01 = np.random.default_rng(0).normal(size=(6, 8))
    loss = make("cross_entropy.b01", b01, [0, 3, 4, 7, 2, 5], 0.2, "B01: 2.403352 in every layout")
    assert abs(float(loss) - 2.403352) < 5e-7, loss
    make("cross_entropy.plain", b01, [0, 3, 4, 7, 2, 5])

    rng = generator("cross_entropy")
    labels = rng.integers(0, 11, size=(3, 5))
    labels[0, [0, 3]], labels[2] = -100, -100
    labels[1, :2] = [0, 10]
    logits = draw(rng, 3, 5, 11, std=2.0)
    dims = ("batch", "seq")
    make("cross_entropy.ignore", logits, labels, dims=dims, note="one row of the batch has none")
    make("cross_entropy.ignore_smoothing", logits, labels, 0.1, dims=dims)
    make("cross_entropy.all_ignored", logits, np.full((3, 5), -100), dims=dims,
         note="B04: no valid label: 0 and zero gradients")
    peak = np.array([[1000.0, 0, 0, 900, 0, 0]])
    # Here the value and all gradients are 0 but for rounding.
    make("cross_entropy.b03", peak, [0], note="B03: 0, finite gradients", atol=1e-15)
    make("cross_entropy.b03_times_10", 10 * peak, [0], note="B03", atol=1e-15)
    make("cross_entropy.b03_shifted", peak - 1e4, [0], note="B03: a shift changes nothing",
         atol=1e-15)
    make("cross_entropy.b03_wrong", peak, [3], note="the label is 100 below the largest: 100")
    loss = make("cross_entropy.uniform", np.zeros((2, 7)), [0, 6], note="B19: ln 7, not ln 8")
    assert abs(float(loss) - np.log(7)) < 1e-15
    make("cross_entropy.negative", draw(rng, 4, 7, mean=-50.0), [0, 3, 6, 5],
         note="B19: padding with 0 would win the maximum")
    make("cross_entropy.one_class", draw(rng, 3, 1), [0, 0, -100], note="a vocabulary of 1: 0")
    # log-probabilities chosen so that the token losses are 1 (seven tokens) and 9 (one token)
    two = np.zeros((8, 2))
    two[:, 1] = np.log(np.expm1(1.0))
    two[7, 1] = np.log(np.expm1(9.0))
    loss = make("cross_entropy.b07", two, np.zeros(8), note="B07: 2.0, a mean of means gives 5.0")
    assert abs(float(loss) - 2.0) < 1e-14, loss


# Attention --------------------------------------------------------------------------------------

def attentions():
    def make(name, batch=2, queries=5, keys=None, kv_heads=2, group=1, depth=4, value_depth=None,
             causal=False, mask=None, bias=None, std=1.0, note=None):
        rng = generator(name)
        keys_, value_depth_ = keys or queries, value_depth or depth
        # Self-attention has one length; otherwise the keys' dimension has a name of its own.
        key_dim = "seq" if keys is None else "keys"
        value_dim = "head_dim" if value_depth is None else "value_dim"
        grouped = group > 1
        heads_k = ("kv_heads",) if grouped else ("heads",)
        heads_q = ("kv_heads", "group") if grouped else ("heads",)
        sizes_q = (kv_heads, group) if grouped else (kv_heads,)
        inputs = {
            "q": (("batch", "seq", *heads_q, "head_dim"),
                  draw(rng, batch, queries, *sizes_q, depth, std=std)),
            "k": (("batch", key_dim, *heads_k, "head_dim"),
                  draw(rng, batch, keys_, kv_heads, depth, std=std)),
            "v": (("batch", key_dim, *heads_k, value_dim),
                  draw(rng, batch, keys_, kv_heads, value_depth_))}
        if mask is not None:
            inputs["mask"] = (("batch", key_dim), np.asarray(mask, bool))
        if bias is not None:
            # The bias's two lengths need two names, also in self-attention.
            axes = {"batch": batch, **dict(zip(heads_q, sizes_q)), "seq": queries, "keys": keys_}
            bias = tuple(b for a in bias for b in (heads_q if a == "heads" else (a,)))
            inputs["bias"] = (bias, draw(rng, *(axes[a] for a in bias)))
        scale = depth ** -0.5

        def allowed_keys(mask):
            allowed = torch.ones(batch, 1, queries, keys_, dtype=torch.bool)
            if causal:
                allowed &= torch.ones(queries, keys_, dtype=torch.bool).tril(keys_ - queries)
            if mask is not None:
                allowed = allowed & mask[:, None, None, :]
            return allowed

        def full_bias(bias_value):
            if bias_value is None:
                return 0.0
            order = ("batch", *heads_q, "seq", "keys")
            full = bias_value.reshape([axes[a] if a in bias else 1 for a in order])
            return full.flatten(1, 2) if grouped else full

        def function(q, k, v, mask=None, bias=None):
            q, k, v = (t.transpose(1, 2) for t in (q.flatten(2, -2), k, v))
            k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
            allowed = allowed_keys(mask)
            scores = scale * torch.einsum("bhqd,bhkd->bhqk", q, k) + full_bias(bias)
            top = torch.where(allowed, scores, -torch.inf).amax(-1, keepdim=True)
            top = torch.where(torch.isinf(top), 0.0, top).detach()
            weights = torch.where(allowed, torch.exp(torch.where(allowed, scores - top, 0.0)), 0.0)
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total == 0, 1.0, total)
            out = torch.einsum("bhqk,bhkd->bhqd", weights, v)
            # torch's own, which gives 0 for a row without keys as well
            theirs = torch.where(allowed, torch.zeros(()).double(), -torch.inf) + full_bias(bias)
            theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=theirs.detach().expand(
                batch, kv_heads * group, queries, keys_))
            torch.testing.assert_close(out, theirs, rtol=1e-13, atol=1e-13)
            return out.transpose(1, 2).unflatten(2, sizes_q)

        case(name, "attention", inputs, ("batch", "seq", *heads_q, value_dim), function,
             {"over": key_dim, "causal": causal, "scale": scale}, note=note)

    make("attention.plain")
    make("attention.causal", causal=True)
    make("attention.long", batch=1, queries=67, kv_heads=1, depth=3, causal=True,
         note="longer than a tile")
    make("attention.one", queries=1, causal=True, note="one key: out = v")
    make("attention.grouped", kv_heads=2, group=3)
    make("attention.grouped_causal", kv_heads=3, group=2, causal=True)
    make("attention.multi_query", kv_heads=1, group=4, causal=True, note="all heads share one")
    make("attention.large", std=5.0, causal=True, note="large scores: one key takes nearly all")
    make("attention.value_depth", value_depth=3, causal=True, note="v has a depth of its own")
    make("attention.cross", queries=4, keys=6, note="more keys than queries")
    make("attention.cached", queries=3, keys=5, causal=True, note="query i sees keys j <= i + 2")
    make("attention.short_keys", queries=5, keys=3, causal=True,
         note="queries 0 and 1 see no key: rows of 0")
    right = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    left = [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    make("attention.mask", mask=right, note="padding on the right")
    make("attention.mask_causal_left", mask=left, causal=True,
         note="B08: left padding; rows without a key are 0, all of the second sample too")
    make("attention.mask_none", mask=[[1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], kv_heads=2, group=2,
         note="B08: the second sample sees no key")
    make("attention.bias", bias=("heads", "seq", "keys"), keys=5)
    make("attention.bias_batch", bias=("batch", "heads", "seq", "keys"), keys=5, kv_heads=2,
         group=2, causal=True)
    make("attention.bias_mask", bias=("seq", "keys"), keys=5, mask=[[1, 1, 0, 1, 1], [0] * 5],
         causal=True, note="the bias is shared by batch and heads")


# Rope, embedding --------------------------------------------------------------------------------

def ropes():
    def make(name, depth, interleaved, pos, rotary=None, base=10000.0, note=None):
        rotary = rotary or depth
        pos = np.asarray(pos, np.int32)
        x = draw(generator(name), *pos.shape, 2, depth)

        def function(x, pos):
            inverse = base ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
            turn = torch.polar(torch.ones(()).double(), pos.double()[..., None, None] * inverse)
            front, rest = x[..., :rotary], x[..., rotary:]
            if interleaved:
                pairs = torch.complex(front[..., 0::2], front[..., 1::2])
            else:
                pairs = torch.complex(front[..., :rotary // 2], front[..., rotary // 2:])
            turned = torch.view_as_real(pairs * turn)
            if interleaved:
                front = turned.flatten(-2)
            else:
                front = torch.cat((turned[..., 0], turned[..., 1]), -1)
            return torch.cat((front, rest), -1)

        dims = ("batch", "seq", "heads", "head_dim")
        case(name, "rope", {"x": (dims, x), "pos": (("batch", "seq"), pos)}, dims, function,
             {"along": "head_dim", "base": base, "interleaved": interleaved, "rotary": rotary},
             note=note)

    pos = [[0, 1, 2, 3, 4], [7, 8, 9, 30, 31]]
    make("rope.half", 6, False, pos)
    make("rope.interleaved", 6, True, pos)
    make("rope.half_partial", 8, False, pos, rotary=4, note="the last 4 of 8 elements are copied")
    make("rope.interleaved_partial", 8, True, pos, rotary=4, note="the last 4 of 8 are copied")
    far = [[256, 257, 15962, 131071]]
    make("rope.far", 4, False, far, note="B10: angles in bfloat16 or float32 would be wrong here")
    make("rope.far_base", 4, True, far, base=500000.0, note="another base")
    assert abs(np.cos(15962.0) + 0.908016) < 1e-6


def embeddings():
    rng = generator("embedding")
    table = draw(rng, 7, 5)
    ids = np.array([[3, 6, 3, 0], [3, 1, 6, 6]], np.int32)
    case("embedding", "embedding", {"table": (("vocab", "width"), table),
                                    "ids": (("batch", "seq"), ids)}, ("batch", "seq", "width"),
         lambda table, ids: F.embedding(ids.long(), table),
         note="repeated ids add up; ids 2, 4, 5 are absent: gradient 0")
    case("embedding.one_id", "embedding", {"table": (("vocab", "width"), table),
                                           "ids": (("batch", "seq"), np.full((3, 5), 6, np.int32))},
         ("batch", "seq", "width"), lambda table, ids: F.embedding(ids.long(), table),
         note="one row takes every gradient")


# bfloat16 ---------------------------------------------------------------------------------------

def bfloat16():
    """B12: float32 bits and the bfloat16 bits they round to (to nearest, ties to even)."""
    special = [0x7F800001, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x80000000, 0x00000001, 0x00008000,
               0x00008001, 0x00018000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF]
    special.append(int(np.float32(0.2691408770292272).view(np.uint32)))
    drawn = generator("bfloat16").integers(0, 2 ** 32, size=50, dtype=np.uint64)
    bits = np.array(special + [int(b) for b in drawn], np.uint32)
    result = torch.from_numpy(bits.view(np.float32)).bfloat16().view(torch.int16).numpy()
    tensors["bfloat16.round/bits"] = bits.view(np.int32)
    tensors["bfloat16.round/out"] = result.view(np.uint16).astype(np.int32)
    cases.append({"name": "bfloat16.round", "op": "cast", "settings": {"to": "bf16"},
                  "inputs": {"bits": ["n"]}, "out": ["n"], "gradients": [],
                  "note": "B12: bits of float32 values in, bits of bfloat16 values out, both as "
                          "int32; any NaN is right where out is a NaN"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "ops")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for family in (norms, activations, softmaxes, cross_entropies, attentions, ropes, embeddings,
                   bfloat16):
        family()
    assert len({c["name"] for c in cases}) == len(cases)
    about = {"made_by": "tests/oracles/make_ops.py", "torch": torch.__version__}
    safetensors_np.save(out / "ops.safetensors", tensors, about)
    lines = ",\n".join("  " + json.dumps(c) for c in cases)
    (out / "ops.json").write_text(
        f'{{"made_by": "tests/oracles/make_ops.py", "torch": "{torch.__version__}",\n'
        f' "tensors": "ops.safetensors",\n "cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases, {len(tensors)} tensors")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes gpt2/mixed_*.safetensors: PyTorch's values for the small GPT-2 in mixed precision. Run by
hand, never in CI.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python make_precision.py [--out gpt2]

Weights, inputs and sizes are those of make_gpt2.py. Everything is computed in float64, and rounded
to bf16 (or f16) by torch's own casts where Cleave says that it rounds (passes/README.md,
"Precision"):

    read       a weight matrix where a product reads it; its gradient is not rounded
    stored     the residual stream, what a norm gives, q, k, v, what attention gives, what GELU reads
               and gives, the logits; the gradient of each, added up, is rounded once
    parts      with `reduce` of the short type: what a product gives, before anything is added to it,
               what is looked up, and each param's gradient

Norms, softmax, GELU, the loss, biases and sums are computed on unrounded values. What float32 rounds
in between is not in here: it is some 2^-16 of what is.

Files written (safetensors): mixed_bf16, mixed_bf16_parts, mixed_f16. Each has the loss and
grad.<param>, float32. Of f16 the loss is differentiated times 1024, as `cleave run --grads` does it.
"""

import argparse
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

import safetensors_np
from make_gpt2 import BATCH, HEAD_DIM, LAYERS, SEQ, VOCAB, WIDTH


class Stored(torch.autograd.Function):
    """Rounded, and so is its gradient."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.to(torch.float32).to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g.to(torch.float32).to(ctx.dtype).to(g.dtype), None


class Read(torch.autograd.Function):
    """Rounded; its gradient passes."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(torch.float32).to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g, None


class Attention(torch.autograd.Function):
    """Causal. Its gradient starts from the result as it is stored (arXiv 2205.14135, algorithm 4)."""

    @staticmethod
    def forward(ctx, q, k, v, dtype):
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(HEAD_DIM)
        seen = torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
        p = scores.masked_fill(~seen, -math.inf).softmax(-1)
        out = Read.apply(torch.einsum("bhij,bjhd->bihd", p, v), dtype)
        ctx.save_for_backward(q, k, v, p, out)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, p, out = ctx.saved_tensors
        dp = torch.einsum("bihd,bjhd->bhij", g, v)
        delta = (g * out).sum(-1).permute(0, 2, 1).unsqueeze(-1)
        ds = p * (dp - delta) / math.sqrt(HEAD_DIM)
        return (torch.einsum("bhij,bjhd->bihd", ds, k), torch.einsum("bhij,bihd->bjhd", ds, q),
                torch.einsum("bhij,bihd->bjhd", p, g), None)


def loss_of(w, tokens, labels, dtype, parts):
    def stored(x):
        return Stored.apply(x, dtype)

    def product(spec, x, weight):
        y = torch.einsum(spec, x, Read.apply(weight, dtype))
        return stored(y) if parts else y

    def norm(x, name):
        weight, bias = (w[name + end] if layer is None else w[name + end][layer]
                        for end in (".weight", ".bias"))
        return F.layer_norm(x, (WIDTH,), weight, bias, 1e-5)

    layer = None
    rows, positions = w["wte"][tokens], w["wpe"][:SEQ]
    if parts:
        rows, positions = stored(rows), stored(positions)
    x = stored(rows + positions)
    for layer in range(LAYERS):
        h = stored(norm(x, "body.n1"))
        q, k, v = (stored(product("bsw,whd->bshd", h, w["body.w" + p][layer]) + w["body.b" + p][layer])
                   for p in "qkv")
        a = stored(Attention.apply(q, k, v, dtype))
        x = stored(x + product("bshd,hdw->bsw", a, w["body.wo"][layer]) + w["body.bo"][layer])
        h = stored(norm(x, "body.n2"))
        m = stored(product("bsw,wf->bsf", h, w["body.w1"][layer]) + w["body.b1"][layer])
        m = stored(F.gelu(m, approximate="tanh"))
        x = stored(x + product("bsf,fw->bsw", m, w["body.w2"][layer]) + w["body.b2"][layer])
    layer = None
    logits = stored(product("bsw,vw->bsv", stored(norm(x, "last")), w["wte"]))
    return F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)


def mixed(weights, inputs, dtype, parts=False, scale=1.0):
    w = {name: torch.from_numpy(x.astype(np.float64)).requires_grad_() for name, x in weights.items()}
    tokens, labels = (torch.from_numpy(inputs[n].astype(np.int64)) for n in ("tokens", "labels"))
    assert tokens.shape == (BATCH, SEQ)
    loss = loss_of(w, tokens, labels, dtype, parts)
    (loss * scale).backward()
    result = {"loss": loss.detach().numpy().astype(np.float32)}
    for name, x in w.items():
        grad = Read.apply(x.grad, dtype) if parts else x.grad
        result["grad." + name] = (grad / scale).numpy().astype(np.float32)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    here = pathlib.Path(__file__).parent / "gpt2"
    parser.add_argument("--out", type=pathlib.Path, default=here)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    weights, inputs = (safetensors_np.load(here / f"{n}.safetensors") for n in ("weights", "inputs"))
    about = {"made_by": "tests/oracles/make_precision.py", "torch": torch.__version__}
    for name, values in (("mixed_bf16", mixed(weights, inputs, torch.bfloat16)),
                         ("mixed_bf16_parts", mixed(weights, inputs, torch.bfloat16, parts=True)),
                         ("mixed_f16", mixed(weights, inputs, torch.float16, scale=1024.0))):
        safetensors_np.save(out / f"{name}.safetensors", values, about)
        print(name, "loss", float(values["loss"]))


if __name__ == "__main__":
    main()

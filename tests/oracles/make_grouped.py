#!/usr/bin/env python3
"""Makes grouped/: PyTorch's values for a small Llama-like model. Run by hand, never in CI.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python make_grouped.py [--out grouped]

Grouped kv heads (3, each shared by 2 query heads; query head h reads kv head h // 2), rotary
positions (pairs (i, i + d/2), base 10000), rms_norm (eps 1e-6), a silu gate, no biases, a tied
head; 2 layers, odd sizes, heads * head_dim != width. Written with nn.Linear, F.rms_norm,
scaled_dot_product_attention(enable_gqa), F.cross_entropy and autograd; rotary positions as in
Hugging Face's Llama (rotate_half), angles in float64. Cleave's names stand in load() and unload()
only. Weights: NumPy's PCG64, fixed seed, exact in float32, no norm weight is 1.
Heads are kv-major, two dimensions in the files: wq is [layers, width, kv_heads, group, head_dim].

Files written (safetensors)
    weights        float32, by Cleave's names
    inputs         int32 tokens, pos, labels [3, 5]; pos neither starts at 0 nor rises by 1
                   everywhere; labels -100 count nowhere
    expected_f64   logits, loss, grad_norm, grad.<param>, computed in float64
    expected_f32   the same computed in float32 (angles in float64, cast last)
    sgd3_f64       the weights after 3 steps of SGD (lr 0.1, momentum 0.9), in float64
"""

import argparse
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import safetensors_np

SEED = 20230218
LAYERS, VOCAB, WIDTH, KV_HEADS, GROUP, HEAD_DIM, FFN = 2, 41, 22, 3, 2, 6, 29
HEADS = KV_HEADS * GROUP
BATCH, SEQ = 3, 5
EPS, BASE = 1e-6, 10000.0
LINEARS = (("wq", "q_proj"), ("wk", "k_proj"), ("wv", "v_proj"), ("wo", "o_proj"),
           ("wg", "gate_proj"), ("wu", "up_proj"), ("wd", "down_proj"))
NORMS = (("n1", "input_norm"), ("n2", "post_norm"))
SHAPES = {"wq": (WIDTH, KV_HEADS, GROUP, HEAD_DIM), "wk": (WIDTH, KV_HEADS, HEAD_DIM),
          "wv": (WIDTH, KV_HEADS, HEAD_DIM), "wo": (KV_HEADS, GROUP, HEAD_DIM, WIDTH),
          "wg": (WIDTH, FFN), "wu": (WIDTH, FFN), "wd": (FFN, WIDTH)}


def make_weights():
    rng = np.random.Generator(np.random.PCG64(SEED))

    def normal(std, *shape):
        return (std * rng.standard_normal(shape)).astype(np.float32)

    def near_one(*shape):
        return (1.0 + 0.3 * rng.standard_normal(shape)).astype(np.float32)

    w = {"wte": normal(0.5, VOCAB, WIDTH), "last.weight": near_one(WIDTH)}
    for name, _ in NORMS:
        w[f"body.{name}.weight"] = near_one(LAYERS, WIDTH)
    for name, _ in LINEARS:
        w[f"body.{name}"] = normal(0.25, LAYERS, *SHAPES[name])
    return w


def make_inputs():
    rng = np.random.Generator(np.random.PCG64(SEED + 1))
    text = rng.integers(0, VOCAB, size=(BATCH, SEQ + 1))
    text[0, 1] = text[0, 3] = text[1, 2]
    text[2, 0], text[2, 4] = VOCAB - 1, 0
    labels = text[:, 1:].copy()
    labels[0, 1] = -100
    labels[2, :3] = -100
    pos = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [0, 2, 17, 400, 401]])
    return {"tokens": text[:, :-1].astype(np.int32), "labels": labels.astype(np.int32),
            "pos": pos.astype(np.int32)}


def rotate(x, pos):
    """x: [batch, heads, seq, head_dim]"""
    inverse = 1.0 / BASE ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angles = pos[:, None, :, None].double() * inverse
    angles = torch.cat((angles, angles), dim=-1)
    half = HEAD_DIM // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.rms_norm(x, (WIDTH,), self.weight, EPS)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = RMSNorm(), RMSNorm()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.gate_proj = nn.Linear(WIDTH, FFN, bias=False)
        self.up_proj = nn.Linear(WIDTH, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x, pos):
        b, s, _ = x.shape
        h = self.input_norm(x)
        q = self.q_proj(h).view(b, s, HEADS, HEAD_DIM).transpose(1, 2)
        k = self.k_proj(h).view(b, s, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.v_proj(h).view(b, s, KV_HEADS, HEAD_DIM).transpose(1, 2)
        a = F.scaled_dot_product_attention(rotate(q, pos), rotate(k, pos), v, is_causal=True,
                                           enable_gqa=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(b, s, HEADS * HEAD_DIM))
        h = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = RMSNorm()

    def forward(self, tokens, pos):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, pos)
        return F.linear(self.norm(x), self.embed.weight)


def load(model, w):
    """Cleave's tensors into torch's modules (nn.Linear stores [out, in])."""
    with torch.no_grad():
        def put(target, array):
            assert tuple(target.shape) == array.shape, (target.shape, array.shape)
            target.copy_(torch.from_numpy(np.ascontiguousarray(array)))

        put(model.embed.weight, w["wte"])
        put(model.norm.weight, w["last.weight"])
        for i, layer in enumerate(model.layers):
            for name, attribute in NORMS:
                put(getattr(layer, attribute).weight, w[f"body.{name}.weight"][i])
            for name, attribute in LINEARS:
                linear = getattr(layer, attribute)
                put(linear.weight, w[f"body.{name}"][i].reshape(linear.in_features, -1).T)


def unload(model, pick):
    """pick(parameter) of every torch parameter, back in Cleave's names and layouts."""
    def get(parameter):
        return pick(parameter).detach().numpy()

    w = {"wte": get(model.embed.weight), "last.weight": get(model.norm.weight)}
    for name, attribute in NORMS:
        w[f"body.{name}.weight"] = np.stack(
            [get(getattr(layer, attribute).weight) for layer in model.layers])
    for name, attribute in LINEARS:
        w[f"body.{name}"] = np.stack(
            [get(getattr(layer, attribute).weight).T.reshape(SHAPES[name])
             for layer in model.layers])
    return {name: np.ascontiguousarray(array) for name, array in w.items()}


def evaluate(model, inputs):
    tokens, labels, pos = (torch.from_numpy(inputs[n].astype(np.int64))
                           for n in ("tokens", "labels", "pos"))
    logits = model(tokens, pos)
    return logits, F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)


def fresh(weights, dtype):
    model = Llama().to(dtype)
    load(model, weights)
    return model


def expected(weights, inputs, dtype):
    model = fresh(weights, dtype)
    logits, loss = evaluate(model, inputs)
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    result = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(),
              "grad_norm": norm.numpy()}
    result.update({f"grad.{n}": g for n, g in unload(model, lambda p: p.grad).items()})
    return result


def sgd3(weights, inputs):
    model = fresh(weights, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        evaluate(model, inputs)[1].backward()
        optimizer.step()
    return unload(model, lambda p: p)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "grouped")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    weights, inputs = make_weights(), make_inputs()
    for name, array in unload(fresh(weights, torch.float64), lambda p: p).items():
        assert np.array_equal(array, weights[name].astype(np.float64)), name
    f64 = expected(weights, inputs, torch.float64)
    about = {"made_by": "tests/oracles/make_grouped.py", "torch": torch.__version__}
    for name, tensors in (("weights", weights), ("inputs", inputs), ("expected_f64", f64),
                          ("expected_f32", expected(weights, inputs, torch.float32)),
                          ("sgd3_f64", sgd3(weights, inputs))):
        safetensors_np.save(out / f"{name}.safetensors", tensors, about)
    print("loss", float(f64["loss"]), "grad norm", float(f64["grad_norm"]))


if __name__ == "__main__":
    main()

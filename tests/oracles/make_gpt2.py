#!/usr/bin/env python3
"""Makes gpt2/: PyTorch's values for a small GPT-2. Run by hand, never in CI.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python make_gpt2.py [--out gpt2]

The model is GPT-2 as published (pre-LN, eps 1e-5, tanh GELU, learned positions, biases, tied head),
written with torch's own modules: nn.LayerNorm, one fused nn.Linear for q, k and v,
scaled_dot_product_attention, F.gelu, F.cross_entropy, autograd, torch.optim. Nothing of Cleave is
used but its parameter names and layouts, in load() and unload(). Sizes are odd on purpose: 2, 3 and
4 divide neither vocab (37) nor heads (5), and 3 does not divide ffn (80). Every weight is drawn by
NumPy (PCG64, fixed seed), is exact in float32, and no norm weight is 1, no bias 0.

Files written (safetensors)
    weights        float32, by Cleave's names
    inputs         int32 tokens, labels [3, 7]; labels -100 count nowhere (5, 3 and 7 valid)
    expected_f64   logits, loss, grad_norm, grad.<param>, computed in float64
    expected_f32   the same computed in float32: torch's own rounding error, for comparison
    sgd3_f64       the weights after 3 steps of SGD (lr 0.1, momentum 0.9), in float64
    sgd3_f32       the same in float32
    adamw3_f64     the weights after 3 steps of AdamW, in float64
    clip3_f64      the weights after 3 steps of the same SGD, gradients clipped to a norm of 1
    groups3_f64    the weights after 3 steps of the same AdamW, clipped to 2: wte frozen, half the
                   learning rate for all of body, no decay for wpe, a decay of 0.2 for body.b1
    training       adamw.losses_f64, adamw.losses_f32 (20), sgd.losses_f64 (3): the loss before each
                   step. AdamW: lr 1e-3, betas 0.9 0.999, eps 1e-8, weight decay 0.1 on everything
                   but norms and biases (wte and wpe are decayed). The same batch at each step.
"""

import argparse
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import safetensors_np

SEED = 20240229
LAYERS, VOCAB, WIDTH, HEADS, HEAD_DIM, POSITIONS = 2, 37, 20, 5, 4, 11
FFN = 4 * WIDTH
BATCH, SEQ = 3, 7

def make_weights():
    rng = np.random.Generator(np.random.PCG64(SEED))

    def normal(std, *shape):
        return (std * rng.standard_normal(shape)).astype(np.float32)

    def near_one(*shape):
        return (1.0 + 0.3 * rng.standard_normal(shape)).astype(np.float32)

    w = {"wte": normal(0.5, VOCAB, WIDTH), "wpe": normal(0.3, POSITIONS, WIDTH)}
    for norm in ("n1", "n2"):
        w[f"body.{norm}.weight"] = near_one(LAYERS, WIDTH)
        w[f"body.{norm}.bias"] = normal(0.2, LAYERS, WIDTH)
    for part in "qkv":
        w[f"body.w{part}"] = normal(0.25, LAYERS, WIDTH, HEADS, HEAD_DIM)
        w[f"body.b{part}"] = normal(0.2, LAYERS, HEADS, HEAD_DIM)
    w["body.wo"] = normal(0.2, LAYERS, HEADS, HEAD_DIM, WIDTH)
    w["body.bo"] = normal(0.2, LAYERS, WIDTH)
    w["body.w1"] = normal(0.25, LAYERS, WIDTH, FFN)
    w["body.b1"] = normal(0.2, LAYERS, FFN)
    w["body.w2"] = normal(0.15, LAYERS, FFN, WIDTH)
    w["body.b2"] = normal(0.2, LAYERS, WIDTH)
    w["last.weight"] = near_one(WIDTH)
    w["last.bias"] = normal(0.2, WIDTH)
    return w


def make_inputs():
    rng = np.random.Generator(np.random.PCG64(SEED + 1))
    text = rng.integers(0, VOCAB, size=(BATCH, SEQ + 1))
    text[0, 1] = text[0, 4] = text[2, 2]  # a token more than once: its embedding gradient adds up
    text[1, 0], text[1, 1] = VOCAB - 1, 0
    tokens, labels = text[:, :-1].copy(), text[:, 1:].copy()
    labels[0, [2, 6]] = -100
    labels[1, :4] = -100
    return {"tokens": tokens.astype(np.int32), "labels": labels.astype(np.int32)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        inner = HEADS * HEAD_DIM
        self.ln_1 = nn.LayerNorm(WIDTH, eps=1e-5)
        self.c_attn = nn.Linear(WIDTH, 3 * inner)
        self.attn_proj = nn.Linear(inner, WIDTH)
        self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-5)
        self.c_fc = nn.Linear(WIDTH, FFN)
        self.mlp_proj = nn.Linear(FFN, WIDTH)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, HEADS, HEAD_DIM).transpose(1, 2)
                   for t in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(a.transpose(1, 2).reshape(b, s, HEADS * HEAD_DIM))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.wpe = nn.Embedding(POSITIONS, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH, eps=1e-5)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def load(model, w):
    """Cleave's tensors into torch's modules (nn.Linear stores [out, in])."""
    with torch.no_grad():
        def put(target, array):
            assert tuple(target.shape) == array.shape, (target.shape, array.shape)
            target.copy_(torch.from_numpy(np.ascontiguousarray(array)))

        put(model.wte.weight, w["wte"])
        put(model.wpe.weight, w["wpe"])
        put(model.ln_f.weight, w["last.weight"])
        put(model.ln_f.bias, w["last.bias"])
        for i, block in enumerate(model.h):
            for norm, name in ((block.ln_1, "n1"), (block.ln_2, "n2")):
                put(norm.weight, w[f"body.{name}.weight"][i])
                put(norm.bias, w[f"body.{name}.bias"][i])
            fused = [w[f"body.w{p}"][i].reshape(WIDTH, -1).T for p in "qkv"]
            put(block.c_attn.weight, np.concatenate(fused))
            put(block.c_attn.bias, np.concatenate([w[f"body.b{p}"][i].ravel() for p in "qkv"]))
            put(block.attn_proj.weight, w["body.wo"][i].reshape(-1, WIDTH).T)
            put(block.attn_proj.bias, w["body.bo"][i])
            put(block.c_fc.weight, w["body.w1"][i].T)
            put(block.c_fc.bias, w["body.b1"][i])
            put(block.mlp_proj.weight, w["body.w2"][i].T)
            put(block.mlp_proj.bias, w["body.b2"][i])


def unload(model, pick):
    """pick(parameter) of every torch parameter, back in Cleave's names and layouts."""
    def get(parameter):
        return pick(parameter).detach().numpy()

    def stack(function):
        return np.stack([function(block) for block in model.h])

    inner = HEADS * HEAD_DIM
    w = {"wte": get(model.wte.weight), "wpe": get(model.wpe.weight),
         "last.weight": get(model.ln_f.weight), "last.bias": get(model.ln_f.bias)}
    for name, attribute in (("n1", "ln_1"), ("n2", "ln_2")):
        w[f"body.{name}.weight"] = stack(lambda b: get(getattr(b, attribute).weight))
        w[f"body.{name}.bias"] = stack(lambda b: get(getattr(b, attribute).bias))
    for index, part in enumerate("qkv"):
        rows = slice(index * inner, (index + 1) * inner)
        w[f"body.w{part}"] = stack(
            lambda b: get(b.c_attn.weight)[rows].T.reshape(WIDTH, HEADS, HEAD_DIM))
        w[f"body.b{part}"] = stack(lambda b: get(b.c_attn.bias)[rows].reshape(HEADS, HEAD_DIM))
    w["body.wo"] = stack(lambda b: get(b.attn_proj.weight).T.reshape(HEADS, HEAD_DIM, WIDTH))
    w["body.bo"] = stack(lambda b: get(b.attn_proj.bias))
    w["body.w1"] = stack(lambda b: get(b.c_fc.weight).T)
    w["body.b1"] = stack(lambda b: get(b.c_fc.bias))
    w["body.w2"] = stack(lambda b: get(b.mlp_proj.weight).T)
    w["body.b2"] = stack(lambda b: get(b.mlp_proj.bias))
    return {name: np.ascontiguousarray(array) for name, array in w.items()}


def evaluate(model, inputs):
    tokens, labels = (torch.from_numpy(inputs[n].astype(np.int64)) for n in ("tokens", "labels"))
    logits = model(tokens)
    return logits, F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)


def fresh(weights, dtype):
    model = GPT2().to(dtype)
    load(model, weights)
    return model


def expected(weights, inputs, dtype):
    model = fresh(weights, dtype)
    logits, loss = evaluate(model, inputs)
    loss.backward()
    grads = unload(model, lambda p: p.grad)
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    result = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(),
              "grad_norm": norm.numpy()}
    result.update({f"grad.{name}": grad for name, grad in grads.items()})
    return result


def train(weights, inputs, dtype, make_optimizer, steps, clip=None):
    model = fresh(weights, dtype)
    optimizer = make_optimizer(model)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        _, loss = evaluate(model, inputs)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], clip)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), unload(model, lambda p: p)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    # torch's matrices and embeddings have two dimensions, its norms and biases one.
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


def grouped_adamw(model):
    model.wte.weight.requires_grad_(False)
    inner = [b.mlp_proj.weight for b in model.h] + [b.c_fc.weight for b in model.h] + \
        [w for b in model.h for w in (b.c_attn.weight, b.attn_proj.weight)]
    b1 = [b.c_fc.bias for b in model.h]
    rest = [p for p in model.h.parameters() if not any(p is q for q in inner + b1)]
    groups = [{"params": [model.wpe.weight], "weight_decay": 0.0},
              {"params": list(model.ln_f.parameters()), "weight_decay": 0.0},
              {"params": inner, "weight_decay": 0.1, "lr": 5e-4},
              {"params": b1, "weight_decay": 0.2, "lr": 5e-4},
              {"params": rest, "weight_decay": 0.0, "lr": 5e-4}]
    assert sum(len(g["params"]) for g in groups) + 1 == len(list(model.parameters()))
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "gpt2")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    weights, inputs = make_weights(), make_inputs()
    for name, array in unload(fresh(weights, torch.float64), lambda p: p).items():
        assert np.array_equal(array, weights[name].astype(np.float64)), name
    adamw_f64, _ = train(weights, inputs, torch.float64, adamw, 20)
    adamw_f32, _ = train(weights, inputs, torch.float32, adamw, 20)
    _, adamw3 = train(weights, inputs, torch.float64, adamw, 3)
    sgd_f64, sgd3_f64 = train(weights, inputs, torch.float64, sgd, 3)
    _, clip3_f64 = train(weights, inputs, torch.float64, sgd, 3, clip=1.0)
    _, groups3_f64 = train(weights, inputs, torch.float64, grouped_adamw, 3, clip=2.0)
    _, sgd3_f32 = train(weights, inputs, torch.float32, sgd, 3)
    values = {torch.float64: expected(weights, inputs, torch.float64),
              torch.float32: expected(weights, inputs, torch.float32)}

    about = {"made_by": "tests/oracles/make_gpt2.py", "torch": torch.__version__}
    for name, tensors in (
            ("weights", weights), ("inputs", inputs),
            ("expected_f64", values[torch.float64]), ("expected_f32", values[torch.float32]),
            ("sgd3_f64", sgd3_f64), ("sgd3_f32", sgd3_f32), ("adamw3_f64", adamw3),
            ("clip3_f64", clip3_f64), ("groups3_f64", groups3_f64),
            ("training", {"adamw.losses_f64": adamw_f64, "adamw.losses_f32": adamw_f32,
                          "sgd.losses_f64": sgd_f64})):
        safetensors_np.save(out / f"{name}.safetensors", tensors, about)

    print("loss", float(values[torch.float64]["loss"]),
          "grad norm", float(values[torch.float64]["grad_norm"]))
    print("AdamW", adamw_f64[0], "->", adamw_f64[-1],
          "float32 off by", np.max(np.abs(adamw_f32 / adamw_f64 - 1)))
    print("SGD", sgd_f64)


if __name__ == "__main__":
    main()

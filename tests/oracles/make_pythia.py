#!/usr/bin/env python3
"""Makes pythia/: PyTorch's values for a small GPT-NeoX. Run by hand, never in CI.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python make_pythia.py [--out pythia]

The model is GPT-NeoX as Pythia has it (parallel residual with two norms, eps 1e-5, one product for
queries, keys and values, rotary positions on a part of each head by halves, erf GELU, biases, a
head of its own), written with torch's own modules: nn.LayerNorm, nn.Linear, F.gelu,
scaled_dot_product_attention, F.cross_entropy, autograd, torch.optim. Nothing of Cleave is used but
its parameter names and layouts, in load() and unload(). Sizes are odd on purpose: 2 and 3 divide
neither vocab (41) nor heads (5); 4 of the 6 elements of a head are rotated. Every weight is drawn by
NumPy (PCG64, fixed seed), is exact in float32, and no norm weight is 1, no bias 0.

Files written (safetensors)
    weights        float32, by Cleave's names
    inputs         int32 tokens, labels [3, 7]; labels -100 count nowhere (5, 3 and 7 valid)
    expected_f64   logits, loss, grad_norm, grad.<param>, computed in float64
    training       losses_f64 (20): the loss before each step of AdamW with lr 1e-3, betas 0.9
                   0.999, eps 1e-8, weight decay 0.1 on everything but norms and biases. The same
                   batch at each step.
"""

import argparse
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import safetensors_np

SEED = 20240322
LAYERS, VOCAB, WIDTH, HEADS, HEAD_DIM, ROTARY, BASE = 2, 41, 20, 5, 6, 4, 10000.0
FFN, INNER = 4 * WIDTH, HEADS * HEAD_DIM
BATCH, SEQ = 3, 7


def make_weights():
    rng = np.random.Generator(np.random.PCG64(SEED))

    def normal(std, *shape):
        return (std * rng.standard_normal(shape)).astype(np.float32)

    def norm(name, *shape):
        return {f"{name}.weight": (1.0 + 0.3 * rng.standard_normal(shape)).astype(np.float32),
                f"{name}.bias": normal(0.2, *shape)}

    w = {"wte": normal(0.5, VOCAB, WIDTH), "head": normal(0.4, VOCAB, WIDTH)}
    for name in ("n1", "n2"):
        w.update(norm(f"body.{name}", LAYERS, WIDTH))
    w["body.wqkv"] = normal(0.25, LAYERS, WIDTH, HEADS, 3, HEAD_DIM)
    w["body.bqkv"] = normal(0.2, LAYERS, HEADS, 3, HEAD_DIM)
    w["body.wo"] = normal(0.2, LAYERS, HEADS, HEAD_DIM, WIDTH)
    w["body.bo"] = normal(0.2, LAYERS, WIDTH)
    w["body.w1"] = normal(0.25, LAYERS, WIDTH, FFN)
    w["body.b1"] = normal(0.2, LAYERS, FFN)
    w["body.w2"] = normal(0.15, LAYERS, FFN, WIDTH)
    w["body.b2"] = normal(0.2, LAYERS, WIDTH)
    w.update(norm("last", WIDTH))
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


def rotate(x):
    """RoPE by halves on the first ROTARY elements of [batch, heads, seq, head_dim]."""
    angle = (torch.arange(x.shape[2], dtype=torch.float64)[:, None]
             * BASE ** (-torch.arange(0, ROTARY, 2, dtype=torch.float64) / ROTARY)[None, :])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, rest = x.split([ROTARY // 2, ROTARY // 2, HEAD_DIM - ROTARY], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.mlp_norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.query_key_value = nn.Linear(WIDTH, 3 * INNER)
        self.dense = nn.Linear(INNER, WIDTH)
        self.up = nn.Linear(WIDTH, FFN)
        self.down = nn.Linear(FFN, WIDTH)

    def forward(self, x):
        b, s, _ = x.shape
        fused = self.query_key_value(self.input_norm(x)).view(b, s, HEADS, 3 * HEAD_DIM)
        q, k, v = fused.transpose(1, 2).chunk(3, dim=-1)
        a = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        a = self.dense(a.transpose(1, 2).reshape(b, s, INNER))
        return x + a + self.down(F.gelu(self.up(self.mlp_norm(x))))


class NeoX(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_in = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.final_norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.embed_out = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed_in(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.embed_out(self.final_norm(x))


def whole(model):
    """(Cleave's name, torch's parameter); torch's nn.Linear of the head is [vocab, width] too."""
    return [("wte", model.embed_in.weight), ("head", model.embed_out.weight),
            ("last.weight", model.final_norm.weight), ("last.bias", model.final_norm.bias)]


def of_layer(layer):
    """(Cleave's name, torch's parameter, its shape in Cleave, transposed)."""
    return [("n1.weight", layer.input_norm.weight, (WIDTH,), False),
            ("n1.bias", layer.input_norm.bias, (WIDTH,), False),
            ("n2.weight", layer.mlp_norm.weight, (WIDTH,), False),
            ("n2.bias", layer.mlp_norm.bias, (WIDTH,), False),
            ("wqkv", layer.query_key_value.weight, (WIDTH, HEADS, 3, HEAD_DIM), True),
            ("bqkv", layer.query_key_value.bias, (HEADS, 3, HEAD_DIM), False),
            ("wo", layer.dense.weight, (HEADS, HEAD_DIM, WIDTH), True),
            ("bo", layer.dense.bias, (WIDTH,), False),
            ("w1", layer.up.weight, (WIDTH, FFN), True), ("b1", layer.up.bias, (FFN,), False),
            ("w2", layer.down.weight, (FFN, WIDTH), True), ("b2", layer.down.bias, (WIDTH,), False)]


def load(model, w):
    """Cleave's tensors into torch's modules (nn.Linear stores [out, in])."""
    def put(target, array, transposed):
        if transposed:
            array = array.reshape(target.shape[1], target.shape[0]).T
        array = np.ascontiguousarray(array.reshape(tuple(target.shape)))
        target.copy_(torch.from_numpy(array))

    with torch.no_grad():
        for name, parameter in whole(model):
            put(parameter, w[name], False)
        for i, layer in enumerate(model.layers):
            for name, parameter, _, transposed in of_layer(layer):
                put(parameter, w[f"body.{name}"][i], transposed)


def unload(model, pick):
    """pick(parameter) of every torch parameter, back in Cleave's names and layouts."""
    def get(parameter, shape, transposed):
        array = pick(parameter).detach().numpy()
        return np.ascontiguousarray((array.T if transposed else array).reshape(shape))

    w = {name: np.array(pick(parameter).detach().numpy()) for name, parameter in whole(model)}
    layers = [{name: get(parameter, shape, transposed)
               for name, parameter, shape, transposed in of_layer(layer)} for layer in model.layers]
    for name in layers[0]:
        w[f"body.{name}"] = np.stack([layer[name] for layer in layers])
    assert sum(a.size for a in w.values()) == sum(p.numel() for p in model.parameters())
    return w


def evaluate(model, inputs):
    tokens, labels = (torch.from_numpy(inputs[n].astype(np.int64)) for n in ("tokens", "labels"))
    logits = model(tokens)
    return logits, F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)


def fresh(weights):
    model = NeoX().to(torch.float64)
    load(model, weights)
    return model


def expected(weights, inputs):
    model = fresh(weights)
    logits, loss = evaluate(model, inputs)
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    result = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(),
              "grad_norm": norm.numpy()}
    grads = unload(model, lambda p: p.grad)
    result.update({f"grad.{name}": grad for name, grad in grads.items()})
    return result


def train(weights, inputs, steps):
    model = fresh(weights)
    # torch's matrices and embeddings have two dimensions, its norms and biases one.
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        _, loss = evaluate(model, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "pythia")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    weights, inputs = make_weights(), make_inputs()
    for name, array in unload(fresh(weights), lambda p: p).items():
        assert np.array_equal(array, weights[name].astype(np.float64)), name
    values, losses = expected(weights, inputs), train(weights, inputs, 20)
    about = {"made_by": "tests/oracles/make_pythia.py", "torch": torch.__version__}
    for name, tensors in (("weights", weights), ("inputs", inputs), ("expected_f64", values),
                          ("training", {"losses_f64": losses})):
        safetensors_np.save(out / f"{name}.safetensors", tensors, about)
    print("loss", float(values["loss"]), "grad norm", float(values["grad_norm"]),
          "AdamW", losses[0], "->", losses[-1])


if __name__ == "__main__":
    main()

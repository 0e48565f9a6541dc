#!/usr/bin/env python3
"""Makes bert/: PyTorch's values for a small BERT in both orders of its norms. Run by hand, never in CI.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python make_bert.py [--out bert]

The model is BERT as published (token, position and type embeddings, erf GELU, attention in both
directions under a key padding mask, eps 1e-12, a pooler and a next-sentence head, a masked-token
head tied to the embedding), post-LN as published or pre-LN with a last norm, written with torch's
own modules: nn.LayerNorm, nn.Linear, scaled_dot_product_attention, F.gelu, F.cross_entropy,
autograd, torch.optim. Nothing of Cleave is used but its parameter names and layouts, in load() and
unload(). Sizes are odd on purpose: 2 and 3 divide neither vocab (43) nor heads (5); the rows have
5, 7 and 4 tokens of 7. Every weight is drawn by NumPy (PCG64, fixed seed), is exact in float32, and
no norm weight is 1, no bias 0.

Files written (safetensors); ORDER is post or pre
    weights               float32, by Cleave's names (last.* is in pre-LN only)
    inputs                int32 tokens, kind, labels [3, 7], next [3]; bool valid [3, 7]
    expected_ORDER_f64    logits, follows, loss, grad_norm, grad.<param>, computed in float64
    training              ORDER.losses_f64 (20): the loss before each step of AdamW with lr 1e-3,
                          betas 0.9 0.999, eps 1e-8, weight decay 0.1 on everything but norms and
                          biases. The same batch at each step.
"""

import argparse
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import safetensors_np

SEED = 20240311
LAYERS, VOCAB, WIDTH, HEADS, HEAD_DIM, POSITIONS, KINDS = 2, 43, 20, 5, 4, 11, 3
FFN, INNER = 4 * WIDTH, HEADS * HEAD_DIM
BATCH, SEQ, LENGTHS = 3, 7, (5, 7, 4)


def make_weights():
    rng = np.random.Generator(np.random.PCG64(SEED))

    def normal(std, *shape):
        return (std * rng.standard_normal(shape)).astype(np.float32)

    def norm(name, *shape):
        return {f"{name}.weight": (1.0 + 0.3 * rng.standard_normal(shape)).astype(np.float32),
                f"{name}.bias": normal(0.2, *shape)}

    w = {"wte": normal(0.5, VOCAB, WIDTH), "wpe": normal(0.3, POSITIONS, WIDTH),
         "wke": normal(0.3, KINDS, WIDTH)}
    w.update(norm("first", WIDTH))
    for name in ("n1", "n2"):
        w.update(norm(f"body.{name}", LAYERS, WIDTH))
    for part in "qkv":
        w[f"body.w{part}"] = normal(0.25, LAYERS, WIDTH, HEADS, HEAD_DIM)
        w[f"body.b{part}"] = normal(0.2, LAYERS, HEADS, HEAD_DIM)
    w["body.wo"] = normal(0.2, LAYERS, HEADS, HEAD_DIM, WIDTH)
    w["body.bo"] = normal(0.2, LAYERS, WIDTH)
    w["body.w1"] = normal(0.25, LAYERS, WIDTH, FFN)
    w["body.b1"] = normal(0.2, LAYERS, FFN)
    w["body.w2"] = normal(0.15, LAYERS, FFN, WIDTH)
    w["body.b2"] = normal(0.2, LAYERS, WIDTH)
    w.update(norm("last", WIDTH))
    w["wp"], w["bp"] = normal(0.25, WIDTH, WIDTH), normal(0.2, WIDTH)
    w["wn"], w["bn"] = normal(0.3, WIDTH, 2), normal(0.2, 2)
    w["wm"], w["bm"] = normal(0.25, WIDTH, WIDTH), normal(0.2, WIDTH)
    w.update(norm("named", WIDTH))
    w["bias"] = normal(0.2, VOCAB)
    return w


def make_inputs():
    rng = np.random.Generator(np.random.PCG64(SEED + 1))
    tokens = rng.integers(0, VOCAB, size=(BATCH, SEQ))
    tokens[0, 1] = tokens[0, 4] = tokens[2, 2]  # more than once: its embedding gradient adds up
    tokens[1, 0], tokens[1, 1] = VOCAB - 1, 0
    kind = np.zeros((BATCH, SEQ), np.int32)
    kind[0, 3:5], kind[1, 2:7], kind[2, 1:3], kind[1, 4] = 1, 1, 1, 2
    valid = np.arange(SEQ)[None, :] < np.array(LENGTHS)[:, None]
    labels = np.full((BATCH, SEQ), -100)
    for row, column in ((0, 1), (0, 4), (1, 0), (1, 5), (1, 6), (2, 2)):
        labels[row, column] = rng.integers(0, VOCAB)
    return {"tokens": tokens.astype(np.int32), "kind": kind, "valid": valid,
            "labels": labels.astype(np.int32), "next": np.array([1, 0, 1], np.int32)}


def layer_norm():
    return nn.LayerNorm(WIDTH, eps=1e-12)


class Layer(nn.Module):
    def __init__(self, pre):
        super().__init__()
        self.pre = pre
        self.query, self.key, self.value = (nn.Linear(WIDTH, INNER) for _ in range(3))
        self.attention_output = nn.Linear(INNER, WIDTH)
        self.attention_norm = layer_norm()
        self.intermediate = nn.Linear(WIDTH, FFN)
        self.output = nn.Linear(FFN, WIDTH)
        self.output_norm = layer_norm()

    def attend(self, x, valid):
        b, s, _ = x.shape
        q, k, v = (linear(x).view(b, s, HEADS, HEAD_DIM).transpose(1, 2)
                   for linear in (self.query, self.key, self.value))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        return self.attention_output(a.transpose(1, 2).reshape(b, s, INNER))

    def mlp(self, x):
        return self.output(F.gelu(self.intermediate(x)))

    def forward(self, x, valid):
        if self.pre:
            x = x + self.attend(self.attention_norm(x), valid)
            return x + self.mlp(self.output_norm(x))
        x = self.attention_norm(x + self.attend(x, valid))
        return self.output_norm(x + self.mlp(x))


class Bert(nn.Module):
    def __init__(self, pre):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.kinds = nn.Embedding(KINDS, WIDTH)
        self.norm = layer_norm()
        self.layers = nn.ModuleList([Layer(pre) for _ in range(LAYERS)])
        self.last = layer_norm() if pre else None
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.follows = nn.Linear(WIDTH, 2)
        self.transform = nn.Linear(WIDTH, WIDTH)
        self.transform_norm = layer_norm()
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, tokens, kind, valid):
        x = self.norm(self.tokens(tokens) + self.positions(torch.arange(SEQ)) + self.kinds(kind))
        for layer in self.layers:
            x = layer(x, valid)
        if self.last is not None:
            x = self.last(x)
        hidden = self.transform_norm(F.gelu(self.transform(x)))
        return (F.linear(hidden, self.tokens.weight, self.bias),
                self.follows(torch.tanh(self.pooler(x[:, 0]))))


def whole(model):
    """(Cleave's name, torch's parameter, whether torch stores it transposed)."""
    pairs = [("wte", model.tokens.weight, False), ("wpe", model.positions.weight, False),
             ("wke", model.kinds.weight, False), ("bias", model.bias, False)]
    norms = [("first", model.norm), ("named", model.transform_norm)]
    if model.last is not None:
        norms.append(("last", model.last))
    for name, norm in norms:
        pairs += [(f"{name}.weight", norm.weight, False), (f"{name}.bias", norm.bias, False)]
    for letter, linear in (("p", model.pooler), ("n", model.follows), ("m", model.transform)):
        pairs += [(f"w{letter}", linear.weight, True), (f"b{letter}", linear.bias, False)]
    return pairs


def of_layer(layer):
    """(Cleave's name, torch's parameter, its shape in Cleave or None, transposed)."""
    pairs = [("n1.weight", layer.attention_norm.weight, None, False),
             ("n1.bias", layer.attention_norm.bias, None, False),
             ("n2.weight", layer.output_norm.weight, None, False),
             ("n2.bias", layer.output_norm.bias, None, False)]
    for letter, linear in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        pairs += [(f"w{letter}", linear.weight, (WIDTH, HEADS, HEAD_DIM), True),
                  (f"b{letter}", linear.bias, (HEADS, HEAD_DIM), False)]
    pairs += [("wo", layer.attention_output.weight, (HEADS, HEAD_DIM, WIDTH), True),
              ("bo", layer.attention_output.bias, None, False)]
    for number, linear in (("1", layer.intermediate), ("2", layer.output)):
        pairs += [(f"w{number}", linear.weight, None, True), (f"b{number}", linear.bias, None, False)]
    return pairs


def load(model, w):
    """Cleave's tensors into torch's modules (nn.Linear stores [out, in])."""
    def put(target, array, transposed):
        if transposed:
            array = array.reshape(target.shape[1], target.shape[0]).T
        array = np.ascontiguousarray(array.reshape(tuple(target.shape)))
        target.copy_(torch.from_numpy(array))

    with torch.no_grad():
        for name, parameter, transposed in whole(model):
            put(parameter, w[name], transposed)
        for i, layer in enumerate(model.layers):
            for name, parameter, _, transposed in of_layer(layer):
                put(parameter, w[f"body.{name}"][i], transposed)


def unload(model, pick):
    """pick(parameter) of every torch parameter, back in Cleave's names and layouts."""
    def get(parameter, shape, transposed):
        array = pick(parameter).detach().numpy()
        array = array.T if transposed else array
        return np.ascontiguousarray(array if shape is None else array.reshape(shape))

    w = {name: get(parameter, None, transposed) for name, parameter, transposed in whole(model)}
    layers = [{name: get(parameter, shape, transposed)
               for name, parameter, shape, transposed in of_layer(layer)} for layer in model.layers]
    for name in layers[0]:
        w[f"body.{name}"] = np.stack([layer[name] for layer in layers])
    assert sum(a.size for a in w.values()) == sum(p.numel() for p in model.parameters())
    return w


def evaluate(model, inputs):
    tokens, kind, labels, follows = (torch.from_numpy(inputs[n].astype(np.int64))
                                     for n in ("tokens", "kind", "labels", "next"))
    logits, classes = model(tokens, kind, torch.from_numpy(inputs["valid"]))
    loss = (F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)
            + F.cross_entropy(classes, follows))
    return logits, classes, loss


def fresh(weights, pre):
    model = Bert(pre).to(torch.float64)
    load(model, weights)
    return model


def expected(weights, inputs, pre):
    model = fresh(weights, pre)
    logits, classes, loss = evaluate(model, inputs)
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    result = {"logits": logits.detach().numpy(), "follows": classes.detach().numpy(),
              "loss": loss.detach().numpy(), "grad_norm": norm.numpy()}
    grads = unload(model, lambda p: p.grad)
    result.update({f"grad.{name}": grad for name, grad in grads.items()})
    return result


def train(weights, inputs, pre, steps):
    model = fresh(weights, pre)
    # torch's matrices and embeddings have two dimensions, its norms and biases one.
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = evaluate(model, inputs)[-1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "bert")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    weights, inputs = make_weights(), make_inputs()
    files = {"weights": weights, "inputs": inputs, "training": {}}
    for order, pre in (("post", False), ("pre", True)):
        for name, array in unload(fresh(weights, pre), lambda p: p).items():
            assert np.array_equal(array, weights[name].astype(np.float64)), name
        values = expected(weights, inputs, pre)
        losses = train(weights, inputs, pre, 20)
        files[f"expected_{order}_f64"] = values
        files["training"][f"{order}.losses_f64"] = losses
        print(order, "loss", float(values["loss"]), "grad norm", float(values["grad_norm"]),
              "AdamW", losses[0], "->", losses[-1])
    about = {"made_by": "tests/oracles/make_bert.py", "torch": torch.__version__}
    for name, tensors in files.items():
        safetensors_np.save(out / f"{name}.safetensors", tensors, about)


if __name__ == "__main__":
    main()

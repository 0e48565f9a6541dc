"""volumes.py CASE [F G S] < `cleave explain --costs --json` of GPT-2 with the sizes below: the closed forms and every
difference, by formulas of their own; closed + differences = counted, and counted is what the sites say. F, G, S: bytes of
an element (4): of what is computed, of matrices as they are gathered, of what ranks sum (gradients, activations)."""
import json
import math
import sys

case = sys.argv[1]
d = json.load(sys.stdin)
L, h, vocab, positions, four = 3, 30, 257, 19, 4  # layers, width, ..., ffn over width
F, G, S = (int(a) for a in sys.argv[2:]) if len(sys.argv) > 2 else (4, 4, 4)
b, s = d["sizes"]["batch"], d["sizes"]["seq"]
forms = {f["axes"]: f for f in d["closed_forms"]}


def check(form, closed, differences):
    """differences: bytes by the first words of what they are called."""
    counted = sum(c["ring_bytes"] for c in d["collectives"] if c["axes"] == form["axes"])
    assert form["counted_bytes"] == counted, (form["counted_bytes"], counted)
    assert form["unexplained_bytes"] == 0, form
    assert abs(form["closed_bytes"] + sum(t["bytes"] for t in form["differences"]) - counted) < 1e-6, form
    assert abs(form["closed_bytes"] - closed) < 1e-6, (form["closed_bytes"], closed)
    left = {t["what"]: t["bytes"] for t in form["differences"]}
    for words, number in differences.items():
        found = [what for what in left if what.startswith(words)]
        assert found, (words, left)
        total = sum(left.pop(what) for what in found)
        assert abs(total - number) < 1e-6, (words, total, number)
    left = {what: n for what, n in left.items() if "whole bytes" not in what}  # less than a byte each
    assert not left, left
    assert all(abs(t["bytes"]) < len(d["collectives"]) * L for t in form["differences"] if "whole bytes" in t["what"])


# Params: vectors and matrices of a layer.
vectors = {"n1.weight": h, "n1.bias": h, "n2.weight": h, "n2.bias": h, "bo": h, "b2": h, "b1": four * h,
           "bq": h, "bk": h, "bv": h}
matrices = {"wq": h * h, "wk": h * h, "wv": h * h, "wo": h * h, "w1": four * h * h, "w2": four * h * h}
ends = {"wte": vocab * h, "wpe": positions * h, "last.weight": h, "last.bias": h}
psi = L * (sum(vectors.values()) + sum(matrices.values())) + sum(ends.values())
assert set(forms) == {"tp"} if case == "tensor" else {"dp"}

if case == "tensor":
    t = d["mesh"]["tp"]
    stream = b * s * h
    check(forms["tp"], 4 * stream * (t - 1) / t * S * L * 2, {
        # the embedding of a split vocabulary; the logits' input; maximum, sum and label of the cross-entropy
        "outside of layers, forward: all_reduce of [batch=5, seq=17, width=30]": 2 * stream * (t - 1) / t * S,
        "outside of layers, backward: all_reduce of [batch=5, seq=17, width=30]": 2 * stream * (t - 1) / t * S,
        "outside of layers, forward: all_reduce of [batch=5, seq=17] ": 3 * 2 * b * s * (t - 1) / t * F,
        "norm of the gradients": 2 * (t - 1) / t * 8})
else:
    N = d["mesh"]["dp"]
    share = (N - 1) / N
    level = int(case[-1])
    # Only seq of the positions are read: their gradient is summed before it is put in its place, unless it is
    # the positions that the ranks split.
    # What is rounded before it is summed is summed whole.
    wpe = (s - positions) * h * (2 if level == 0 else 1 if h % N == 0 else 0) if S == F or level == 0 else (2 * s - positions) * h
    scalars = {"forward: all_reduce of [] ": 2 * 2 * share * F}  # loss and count of labels
    norm = {"norm of the gradients": 2 * share * 8} if level else {}

    # What is split: of a param the dim that leaves the fewest elements; blocks of ceil(size / N).
    def padding_of(dims):
        n = math.prod(dims)
        return min(math.ceil(size / N) * N * (n // size) - n for size in dims)

    shapes = {"wte": [vocab, h], "wpe": [positions, h], "last.weight": [h], "last.bias": [h]}
    per_layer = {**{name: [n] for name, n in vectors.items()}, "wq": [h, 3, 10], "wk": [h, 3, 10], "wv": [h, 3, 10],
                 "wo": [3, 10, h], "bq": [3, 10], "bk": [3, 10], "bv": [3, 10], "w1": [h, four * h], "w2": [four * h, h]}
    in_matrices = L * sum(matrices.values())
    padded_matrices = L * sum(padding_of(per_layer[x]) for x in matrices)
    padded = sum(padding_of(x) for x in shapes.values())
    padded += L * sum(padding_of(x) for x in per_layer.values())
    # Of gradients; a sum over the ranks of all of wpe has no blocks.
    padded_sums = padded - (padding_of(shapes["wpe"]) if S != F else 0)
    total = {"of wpe only [seq=17, width=30] is summed": wpe * share * S, **scalars, **norm}
    if level == 0:
        check(forms["dp"], 2 * psi * share * S, total)
    elif level < 3:
        total["padding"] = (padded_sums * S + padded * F) * share # gradients and new params
        check(forms["dp"], psi * (S + F) * share, {k: v for k, v in total.items() if v})
    else:
        # No gradient needs a bias; those of the layers' norms are read again where the backward pass makes the
        # norms again.
        biases = ("bo", "b2", "b1", "bq", "bk", "bv")
        once = L * sum(vectors[n] for n in biases) + h + positions * h
        if G != F:  # the look-up reads wte in F bytes, and its copy in G bytes is there for the backward pass
            once += vocab * h
        total["params that the backward pass has no use for: gathered once"] = -once * share * F
        once_padding = L * sum(padding_of(per_layer[n]) for n in biases)
        once_padding += padding_of([h]) + padding_of(shapes["wpe"])
        if G != F:
            once_padding += padding_of(shapes["wte"])
        gathered_padding = 2 * padded_matrices * G + (2 * (padded - padded_matrices) - once_padding) * F
        total["padding"] = (padded_sums * S + gathered_padding) * share
        gathered = in_matrices * G + (psi - in_matrices) * F
        check(forms["dp"], (psi * S + 2 * gathered) * share, {k: v for k, v in total.items() if v})

"""The peer of step.py: GPT-2's training step in PyTorch eager, float32, AdamW.

Prints one JSON line: seconds of each step after the first. Needs torch (a venv of
your own; never in CI).  torch_step.py BATCH SEQ THREADS STEPS [LAYERS WIDTH HEADS VOCAB]
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

batch, seq, threads, steps, layers, width, heads, vocab = (
    list(map(int, sys.argv[1:])) + [12, 768, 12, 50257][len(sys.argv) - 5:])[:8]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.last = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.last(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.view(-1, vocab), labels.view(-1))


torch.set_num_threads(threads)
torch.manual_seed(0)
model = Gpt2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
tokens, labels = torch.randint(0, vocab, (2, batch, seq))
times = []
for _ in range(steps):
    start = time.perf_counter()
    loss = model(tokens, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": times[1:] or times, "torch": torch.__version__}))

"""Causal attention of GPT-2 124M (12 heads of 64), forward and backward, Cleave and PyTorch taking turns.

  attention.py --peer PYTHON_WITH_TORCH [--rounds 5] [--threads 2]

Cleave's times are those of its kernels in a training step (`cleave train --profile`), PyTorch's those of
scaled_dot_product_attention on tensors of [batch, heads, seq, depth]. Best of the rounds; prints a table.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cleave", default=os.path.join(ROOT, "build", "bin", "cleave"))
parser.add_argument("--text", default=os.path.join(ROOT, "build", "data", "shakespeare.txt"))
parser.add_argument("--peer", help="a Python that has torch; without it, Cleave alone is measured")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()

TORCH = """
import json, sys, time, torch
batch, seq, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
q, k, v = (torch.randn(batch, 12, seq, 64, requires_grad=True) for _ in range(3))
g = torch.randn(batch, 12, seq, 64)
forward, backward = [], []
for _ in range(12):
    start = time.perf_counter()
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    middle = time.perf_counter()
    y.backward(g)
    forward.append(middle - start)
    backward.append(time.perf_counter() - middle)
print(json.dumps([min(forward), min(backward)]))
"""


def cleave(batch, seq):
    command = [args.cleave, "train", os.path.join(ROOT, "models", "gpt2.cleave"), "--set",
               "vocab=256,width=768,layers=2,heads=12,head_dim=64,positions=1024", "--data", args.text,
               "--batch", str(batch), "--seq", str(seq), "--threads", str(args.threads), "--steps", "5",
               "--profile", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    kernels = json.loads(run.stdout.splitlines()[-1])["profile"]["kernels"]
    times = {k["name"]: k["seconds"] / k["count"] for k in kernels if k["kind"] == "attention"}
    return times["attention"], times["attention_grad"]


def torch(batch, seq):
    run = subprocess.run([args.peer, "-c", TORCH, str(batch), str(seq), str(args.threads)],
                         capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    return json.loads(run.stdout)


print(f"causal attention, 12 heads of 64, f32, {args.threads} threads; best of {args.rounds} rounds, milliseconds")
for batch, seq in ((4, 256), (1, 1024)):
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(cleave(batch, seq))
        if args.peer:
            theirs.append(torch(batch, seq))
    for i, name in enumerate(("forward", "backward")):
        mine = min(t[i] for t in ours)
        line = f"  {batch} x {seq:<5} {name:<9} cleave {mine * 1e3:7.2f}"
        if theirs:
            other = min(t[i] for t in theirs)
            line += f"   pytorch {other * 1e3:7.2f}   ratio {mine / other:.2f}"
        print(line)

"""What two choices of a model do to its training, from runs of minutes.

  studies.py [--cleave build/bin/cleave] [--text TEXT] [--out studies.md]

The place of the layer norms: BERT with them behind its blocks (as published) and before them, at several depths and
learning rates (AdamW, no warm-up, no clipping): which runs learn more than how often bytes occur.
The size: GPT-2 in three sizes at equal numbers of tokens and one learning rate. Losses are means over the last tenth of the
steps, over several seeds. By `cleave train --json` alone; the tables are written with the commit they were made on.
"""
import argparse
import collections
import json
import math
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cleave", default=os.path.join(ROOT, "build", "bin", "cleave"))
parser.add_argument("--text", default=os.path.join(ROOT, "build", "data", "shakespeare.txt"))
parser.add_argument("--steps", type=int, default=1200, help="of each BERT")
parser.add_argument("--tokens", type=int, default=409600, help="of each GPT-2")
parser.add_argument("--depths", type=int, nargs="+", default=[2, 4, 6])
parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
parser.add_argument("--out", default=os.path.join(HERE, "studies.md"))
args = parser.parse_args()

SIZES = ["width=16,layers=2,heads=2,head_dim=8", "width=48,layers=3,heads=3,head_dim=16",
         "width=128,layers=4,heads=4,head_dim=32"]


def losses(model, settings, steps, rate, batch, seq, seed):
    """Of each step, and the summary."""
    command = [args.cleave, "train", os.path.join(ROOT, "models", f"{model}.cleave"), "--data", args.text, "--set",
               settings, "--steps", str(steps), "--lr", str(rate), "--batch", str(batch), "--seq", str(seq), "--seed",
               str(seed), "--quiet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["loss"] for line in lines if "step" in line], lines[-1]


def last(values):
    """The mean over the last tenth; a loss that is no number counts as infinite."""
    tail = values[-max(1, len(values) // 10):]
    return sum(v if isinstance(v, float) and math.isfinite(v) else math.inf for v in tail) / len(tail)


def mean(values):
    return sum(values) / len(values)


def unigram(text):
    """Nats of a byte, by how often bytes occur."""
    counts = collections.Counter(open(text, "rb").read())
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


out = ["# Studies", "", "Written by `studies.py`; by hand nothing.", ""]
commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
out.append(f"Commit {commit}, float32, text: {os.path.basename(args.text)} as bytes, seeds {', '.join(map(str, args.seeds))}.")

entropy = unigram(args.text)
chance = entropy + math.log(2)
out += ["", "## The place of BERT's layer norms", "",
        f"Width 64, 4 heads, dropout 0, batch 8 x 48, {args.steps} steps of AdamW at a constant rate. Loss: of masked bytes and of "
        f"the next sentence; who knows only how often bytes occur has about {chance:.2f} ({entropy:.2f} and ln 2).", "",
        "| layers | learning rate | norms behind the blocks | norms before them |", "|---|---|---|---|"]
for depth in args.depths:
    for rate in args.rates:
        row = []
        for before in ("false", "true"):
            settings = f"width=64,heads=4,head_dim=16,positions=48,dropout_rate=0,layers={depth},pre_norm={before}"
            row.append(mean([last(losses("bert", settings, args.steps, rate, 8, 48, seed)[0]) for seed in args.seeds]))
        print(f"bert, {depth} layers, rate {rate:g}: behind {row[0]:.3f}, before {row[1]:.3f}", flush=True)
        out.append(f"| {depth} | {rate:g} | {row[0]:.3f} | {row[1]:.3f} |")

steps = args.tokens // (8 * 64)
out += ["", "## Three sizes of GPT-2", "", f"{steps} steps of 8 x 64 bytes ({steps * 512:,} tokens), AdamW at 1e-3, dropout 0.", "",
        "| params | settings | loss | each seed |", "|---|---|---|---|"]
means = []
for settings in SIZES:
    each, params = [], 0
    for seed in args.seeds:
        run, summary = losses("gpt2", settings + ",dropout_rate=0", steps, 1e-3, 8, 64, seed)
        each.append(last(run))
        params = summary["params"]
    means.append(mean(each))
    print(f"gpt2, {params:,} params: {means[-1]:.3f}", flush=True)
    out.append(f"| {params:,} | `{settings}` | {means[-1]:.3f} | {', '.join(f'{v:.3f}' for v in each)} |")
better = all(a > b for a, b in zip(means, means[1:]))
out += ["", "The larger is better at equal tokens." if better else "**The larger is not better here.**", ""]

beside = args.out + ".part"
with open(beside, "w") as file:
    file.write("\n".join(out))
os.replace(beside, args.out)
print(f"written: {args.out}")

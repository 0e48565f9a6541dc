"""Whole training steps of GPT-2 124M, Cleave and PyTorch taking turns.

  step.py --cleave build/bin/cleave --text TEXT [--peer PYTHON_WITH_TORCH] [--rounds 3]

Ratios of the best times are what counts: machines are noisy. Prints a table and,
with --json FILE, writes what it measured with the machine and the commit.
"""
import argparse
import json
import os
import platform
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SIZES = "vocab=50257,width=768,layers=12,heads=12,head_dim=64,positions=1024"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cleave", default=os.path.join(ROOT, "build", "bin", "cleave"))
parser.add_argument("--text", default=os.path.join(ROOT, "build", "data", "shakespeare.txt"))
parser.add_argument("--peer", help="a Python that has torch; without it, Cleave alone is measured")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--json")
args = parser.parse_args()


def cleave(*plan):
    command = [args.cleave, "train", os.path.join(ROOT, "models", "gpt2.cleave"), "--set", SIZES,
               "--data", args.text, "--steps", str(args.steps), "--batch", str(args.batch),
               "--seq", str(args.seq), "--threads", str(args.threads), "--lr", "1e-4", "--json", *plan]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    seconds = []
    for line in run.stdout.splitlines():
        record = json.loads(line)
        if "step" in record and "seconds" in record:
            seconds.append(record["seconds"])
    return seconds[1:] or seconds


def torch():
    command = [args.peer, os.path.join(HERE, "torch_step.py"), str(args.batch), str(args.seq),
               str(args.threads), str(args.steps)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if run.returncode:
        sys.exit(run.stderr)
    return json.loads(run.stdout)["seconds"]


kinds = {"cleave, one rank": lambda: cleave(),
         "cleave, megatron tp=2": lambda: cleave("--plan", "megatron", "--mesh", "tp=2"),
         "cleave, data dp=2": lambda: cleave("--plan", "data", "--mesh", "dp=2")}
if args.batch % 2:
    del kinds["cleave, data dp=2"]
if args.peer:
    kinds["pytorch eager"] = torch
best = {}
for _ in range(args.rounds):
    for name, measure in kinds.items():
        best[name] = min([best.get(name, float("inf")), *measure()])
base = best.get("pytorch eager", best["cleave, one rank"])
print(f"GPT-2 124M, batch {args.batch} x {args.seq}, f32, AdamW, {args.threads} threads; best of "
      f"{args.rounds} rounds of {args.steps} steps")
for name, seconds in best.items():
    print(f"  {name:24} {seconds:8.3f} s  {seconds / base:5.2f}")
if args.json:
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    with open(args.json + ".part", "w", encoding="utf-8") as out:
        json.dump({"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
                   "commit": commit, "seconds": best}, out, indent=1)
    os.replace(args.json + ".part", args.json)

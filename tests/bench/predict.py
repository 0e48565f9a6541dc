"""Predicted step times beside measured and emulated ones.

  predict.py --profile PROFILE [--cleave build/bin/cleave] [--rounds 3] [--steps 5] [--out predict.md]

PROFILE: of this machine, as `cleave calibrate` wrote it. Each point is a model, its sizes, a plan and a mesh, and
none of them is used to calibrate. One and two ranks are measured, as they run (the best of --rounds medians of
--steps steps, on one thread each); four and eight are emulated on the same profile, from the ranks' CPU time. With
--cpu, CPU time counts for one and two ranks too: for a machine whose cores other programs want.
Ends with an error if the bytes that ranks counted, or their arena, are not those of the prediction. The table is
written with the machine and the commit.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# Model, sizes, batch, seq: little of it is what calibration measures.
MODELS = [
    ("gpt2", "small", "vocab=515,width=120,layers=3,heads=6,head_dim=20,positions=96", 8, 96),
    ("gpt2", "medium", "vocab=5000,width=384,layers=4,heads=8,head_dim=48,positions=200", 8, 200),
    ("llama", "small", "vocab=500,width=144,ffn=400,layers=3,kv_heads=2,group=3,head_dim=24", 8, 80),
    ("llama", "medium", "vocab=4000,width=320,ffn=880,layers=4,kv_heads=4,group=2,head_dim=40", 8, 144),
    ("pythia", "small", "vocab=700,width=128,layers=3,heads=4,head_dim=32,rotary=8", 8, 72),
    ("pythia", "medium", "vocab=3000,width=352,layers=3,heads=8,head_dim=44,rotary=12", 8, 120),
    ("bert", "small", "vocab=600,width=132,layers=3,heads=4,head_dim=33,positions=88", 8, 88),
    ("bert", "medium", "vocab=3000,width=360,layers=3,heads=8,head_dim=45,positions=136", 8, 136),
]
# Name, mesh, sentences; a plan of the model's file where there are none.
PLANS = [
    ("none", "", None),
    ("data", "dp=2", None),
    ("tensor", "tp=2", None),
    ("megatron_sp", "dp=1,tp=2", None),
    ("zero2", "dp=2", "shard batch by dp; zero 2 over dp"),
    ("data", "dp=4", None),
    ("megatron", "dp=2,tp=2", None),
    ("zero3", "dp=4", "shard batch by dp; zero 3 over dp"),
    ("megatron", "dp=4,tp=2", None),
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cleave", default=os.path.join(ROOT, "build", "bin", "cleave"))
parser.add_argument("--profile", required=True)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--models", default="", help="only models whose name begins so")
parser.add_argument("--json", help="write all that was measured here")
parser.add_argument("--out", default=os.path.join(HERE, "predict.md"))
args = parser.parse_args()


def ranks_of(mesh):
    count = 1
    for axis in filter(None, mesh.split(",")):
        count *= int(axis.split("=")[1])
    return count


def explain(model, sizes, batch, seq, plan, mesh, *more):
    command = [args.cleave, "explain", os.path.join(ROOT, "models", f"{model}.cleave"), "--set", sizes,
               "--batch", str(batch), "--seq", str(seq), "--plan", plan, "--steps", str(args.steps), "--costs", "--json",
               *(["--mesh", mesh] if mesh else []), *more]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)


def kendall(xs, ys):
    """tau-a of two lists: pairs in the same order less those in the other, over all."""
    sign = [(a > b) - (a < b) for a, b in itertools.combinations(xs, 2)]
    other = [(a > b) - (a < b) for a, b in itertools.combinations(ys, 2)]
    return sum(s * o for s, o in zip(sign, other)) / len(sign)


def point(model, size, sizes, batch, seq, plan, mesh, file):
    ranks = ranks_of(mesh)
    measured = ranks <= 2 and not args.cpu
    # An emulated rank has one thread, and so has a measured one.
    more = ["--measure", "--threads", str(ranks), "--cluster", args.profile] if measured else ["--emulate", args.profile]
    best = None
    for _ in range(args.rounds):
        record = explain(model, sizes, batch, seq, plan if file is None else f"{file}:{plan}_{model}", mesh, *more)
        counted = sum(c["ring_bytes"] for c in record["collectives"])
        if record["counted_ring_bytes"] != counted:
            sys.exit(f"{model} {size} {plan} {mesh}: {record['counted_ring_bytes']} bytes counted, {counted} predicted")
        if record["arena_bytes"] != record["planned_arena_bytes"]:
            sys.exit(f"{model} {size} {plan} {mesh}: arena {record['arena_bytes']}, planned "
                     f"{record['planned_arena_bytes']}")
        key = "measured_step_seconds" if measured else "emulated_step_seconds"
        if best is None or record[key] < best["seconds"]:
            best = {"model": model, "size": size, "plan": plan, "mesh": mesh, "ranks": ranks,
                    "how": "measured" if measured else "CPU time" if ranks <= 2 else "emulated",
                    "predicted": record["predicted_step_seconds"], "seconds": record[key], "compute": record["compute"]}
    best["error"] = best["predicted"] / best["seconds"] - 1
    print(f"{model:7} {size:7} {plan:12} {mesh:10} {best['how']:9} {best['seconds'] * 1e3:9.2f} ms "
          f"{100 * best['error']:+6.1f} %", file=sys.stderr, flush=True)
    return best


with tempfile.NamedTemporaryFile("w", suffix=".cleave") as own:
    for (model, _, _, _, _), (plan, mesh, sentences) in itertools.product(MODELS[::2], PLANS):
        if sentences:
            own.write(f"plan {plan}_{model} for {model} on (dp) {{ {sentences} }}\n")
    own.flush()
    load = [os.getloadavg()[0]]
    points = [point(*row, plan, mesh, own.name if sentences else None)
              for row in MODELS if row[0].startswith(args.models) for plan, mesh, sentences in PLANS]
    load.append(os.getloadavg()[0])

taus = {}
for row in points:
    taus.setdefault((row["model"], row["size"]), []).append(row)
tau = {key: kendall([r["predicted"] for r in rows], [r["seconds"] for r in rows]) for key, rows in taus.items()}
errors = sorted(abs(r["error"]) for r in points)
worst = max(points, key=lambda r: abs(r["error"]))

# Where a prediction misses, by kind of kernel: shares of the steps' time.
kinds = {}
for row in points:
    for kernel in row["compute"]:
        key = "measured_seconds" if "measured_seconds" in kernel else "emulated_seconds"
        total = kinds.setdefault(kernel["kind"], [0, 0, 0])
        total[0] += kernel["predicted_seconds"] / row["seconds"]
        total[1] += kernel[key] / row["seconds"]
        total[2] += abs(kernel["predicted_seconds"] - kernel[key]) / row["seconds"]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                        check=False).stdout.strip()
with open(args.profile, encoding="utf-8") as file:
    about = json.load(file)["about"]
text = f"""# Predicted step times

Made by `python3 tests/bench/predict.py{' --cpu' if args.cpu else ''}` on {time.strftime("%Y-%m-%d")}, commit {commit}; profile: {about}.
Load averages before and after: {load[0]:.1f}, {load[1]:.1f}. Best of {args.rounds} medians of {args.steps} steps. In every point the bytes that ranks
counted and their arena were exactly those predicted.

{len(points)} points: mean error {100 * sum(errors) / len(errors):.1f} %, worst {100 * errors[-1]:.1f} % ({worst['model']} {worst['size']}, {worst['plan']} {worst['mesh']}).

{table(["model", "sizes", "Kendall tau of plans"], [[m, s, f"{t:.2f}"] for (m, s), t in tau.items()])}
Kernels by kind: predicted and real share of a step, and how much of a step the kernels' errors are together, averaged over the points.

{table(["kind", "predicted", "real", "errors"], [[k, *(f"{100 * x / len(points):.1f} %" for x in v)] for k, v in kinds.items()])}
{table(["model", "sizes", "plan", "mesh", "", "step", "predicted", "error"],
       [[r["model"], r["size"], r["plan"], r["mesh"] or "one rank", r["how"], f"{r['seconds'] * 1e3:.2f} ms",
         f"{r['predicted'] * 1e3:.2f} ms", f"{100 * r['error']:+.1f} %"] for r in points])}
Sizes: {"; ".join(f"{m} {s}: {sizes}, batch {b}, seq {q}" for m, s, sizes, b, q in MODELS)}.
"""
if args.json:
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump(points, file)
with open(args.out + ".part", "w", encoding="utf-8") as file:
    file.write(text)
os.replace(args.out + ".part", args.out)
print(text.split("\n\n")[2])

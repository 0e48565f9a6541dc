"""Automatic plans beside those written by hand, and beside all that can be written, in one table.

  autoplan.py [--cleave build/bin/cleave] [--models gpt2,...] [--ranks 2,4,2x2,8] [--profiles nvlink-8,ethernet]
              [--steps 7] [--exhaustive mlp,wide_mlp,gpt2] [--measure 20] [--out autoplan.md]

For each model of models/ and of tests/bench/autoplan/, number of ranks and profile of a cluster: the
training step under `--plan auto` and under each plan of the model's file that fits the ranks (those without a
hand plan: every single dim split, and the batch). Emulated (`cleave compare --emulate`) with --steps steps, and
predicted (`cleave explain --costs`); for 2 ranks also measured here (--measure steps, interleaved).
--exhaustive: all plans of one axis of two ranks that `shard` and `zero` can say, predicted.
Ends with an error if losses part, or if two searches give different plans. The table is written with
the machine and the commit it was made on.
"""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FILES = {name: os.path.join(ROOT, "models", f"{name}.cleave") for name in ("mlp", "gpt2", "llama", "bert", "pythia")}
FILES |= {name: os.path.join(HERE, "autoplan", f"{name}.cleave") for name in ("wide_mlp", "huge_vocab", "odd_heads")}
SIZES = {"mlp": ["--batch", "64"], "wide_mlp": ["--batch", "16"]}
# Dims that plans can split, for the models without a hand plan and for --exhaustive.
DIMS = {
    "mlp": ["batch", "features", "hidden", "classes"],
    "wide_mlp": ["batch", "inputs", "hidden", "classes"],
    "huge_vocab": ["batch", "heads", "ffn", "vocab"],
    "odd_heads": ["batch", "heads", "ffn", "vocab"],
    "gpt2": ["batch", "seq", "heads", "ffn", "vocab", "width"],
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cleave", default=os.path.join(ROOT, "build", "bin", "cleave"))
parser.add_argument("--models", default=",".join(FILES))
parser.add_argument("--ranks", default="2,4,2x2,8")
parser.add_argument("--profiles", default="nvlink-8,ethernet")
parser.add_argument("--steps", type=int, default=7, help="emulated; 0: predicted only")
parser.add_argument("--measure", type=int, default=20, help="steps measured here on 2 ranks; 0: none")
parser.add_argument("--exhaustive", default="mlp,wide_mlp,gpt2")
parser.add_argument("--out", default=os.path.join(HERE, "autoplan.md"))
args = parser.parse_args()
wanted = [name for name in args.models.split(",") if name]
scratch = tempfile.mkdtemp()
failures = []


def cleave(*arguments, check=True):
    done = subprocess.run([args.cleave, *arguments], capture_output=True, text=True)
    if check and done.returncode:
        sys.exit(f"cleave {' '.join(arguments)}:\n{done.stderr}")
    return done


def sizes_of(model):
    return SIZES.get(model, ["--batch", "8", "--seq", "64"])


def hand_plans(model, ranks):
    """Plans with their meshes: (name as --plan has it, mesh)."""
    found = []
    text = open(FILES[model]).read()
    count = 1
    for part in ranks.split("x"):
        count *= int(part)
    for name, axes in re.findall(r"^plan (\w+) for \w+ on \(([^)]*)\)", text, re.M):
        axes = [axis.split("=")[0].strip() for axis in axes.split(",")]
        if "x" in ranks:
            meshes = [ranks.split("x")] if len(axes) == 2 else []
        elif len(axes) == 1:
            meshes = [[ranks]]
        else:
            meshes = [["1", ranks]] + ([["2", str(count // 2)]] if count == 8 else [])
        found += [(name, ",".join(f"{a}={n}" for a, n in zip(axes, sizes))) for sizes in meshes]
    if not found and "x" not in ranks:
        path = os.path.join(scratch, f"{model}.cleave")
        with open(path, "w") as file:
            for dim in DIMS[model]:
                file.write(f"plan by_{dim} for {model} on (tp) {{ shard {dim} by tp }}\n")
            rest = ", ".join(DIMS[model][1:])
            file.write(f"plan tensor for {model} on (tp) {{ shard {rest} by tp }}\n")
        found = [(f"{path}:{name}", f"tp={ranks}") for name in [f"by_{d}" for d in DIMS[model]] + ["tensor"]]
    return found


def predicted(model, plan, mesh, profile):
    done = cleave("explain", FILES[model], "--plan", plan, *mesh, "--costs", "--cluster", profile, "--json", *sizes_of(model),
                  check=False)
    return json.loads(done.stdout)["predicted_step_seconds"] if done.returncode == 0 else None


def compared(model, hand, mesh, auto_mesh, extra, steps):
    """Seconds of a step under the hand plan and under auto, interleaved; None where the hand plan cannot be."""
    plans = os.path.join(scratch, "found.cleave")
    cleave("plan", FILES[model], "--plan", "auto", *auto_mesh, *extra[1], "--out", plans, *sizes_of(model))
    sizes = mesh.split(",")
    done = cleave("compare", FILES[model], "--plans", f"{hand},{plans}:found", "--mesh", ",".join(sizes), *extra[0],
                  "--steps", str(steps), "--json", *sizes_of(model), check=False)
    if done.returncode not in (0, 3):
        return None
    if done.returncode == 3:
        failures.append(f"{model}: losses under {hand} and auto part")
    seconds = []
    for plan in json.loads(done.stdout)["plans"]:
        seconds.append(plan.get("emulated_seconds") or plan["step_seconds"]["median"])
    return seconds


lines = []


def say(text=""):
    print(text, flush=True)
    lines.append(text)


def text_of(seconds):
    return "-" if seconds is None else f"{seconds * 1e3:.3g} ms"


commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
say("# Automatic plans")
say()
say(f"Made by `tests/bench/autoplan.py` on {cpu}, {os.cpu_count()} cores, commit {commit}. Ratios: auto over the best plan by")
say("hand; below 1 auto is faster. Predicted: the clocks of `cleave explain --costs`. Emulated: of a run of all ranks on this")
say("machine's cores, CPU time and the profile's links.")
say()
say("| model | ranks | profile | best by hand | predicted | auto | ratio | emulated | auto | ratio |")
say("|---|---|---|---|---|---|---|---|---|---|")
worst, better = 0.0, 0
for model in wanted:
    for ranks in args.ranks.split(","):
        count = eval(ranks.replace("x", "*"))
        auto_mesh = ["--ranks", str(count)]
        for profile in args.profiles.split(","):
            auto = predicted(model, "auto", auto_mesh, profile)
            plans = []
            for hand, mesh in hand_plans(model, ranks):
                seconds = predicted(model, hand, ["--mesh", mesh], profile)
                if seconds is not None:
                    plans.append((seconds, hand, mesh))
            if not plans:
                continue
            best = min(plans)
            ratio = auto / best[0]
            worst, better = max(worst, ratio), better + (ratio <= 0.9)
            cells = ["-", "-", "-"]
            if args.steps:
                pair = compared(model, best[1], best[2], auto_mesh,
                                (["--emulate", profile], ["--cluster", profile]), args.steps)
                if pair:
                    cells = [text_of(pair[0]), text_of(pair[1]), f"{pair[1] / pair[0]:.2f}"]
            name = best[1].split(":")[-1]
            say(f"| {model} | {ranks} | {profile} | {name} on {best[2]} | {text_of(best[0])} | {text_of(auto)} | {ratio:.2f} | "
                + " | ".join(cells) + " |")
say()
say(f"Predicted: at most {worst:.3f} of the best by hand; at most 0.9 in {better} rows.")

if args.measure:
    say()
    say("## Measured here, 2 ranks of one thread")
    say()
    say(f"{args.measure} steps of each, interleaved; medians.")
    say()
    say("| model | by hand | step | auto | ratio |")
    say("|---|---|---|---|---|")
    for model in wanted:
        for hand, mesh in hand_plans(model, "2"):
            pair = compared(model, hand, mesh, ["--ranks", "2"], ([], []), args.measure)
            if pair:
                say(f"| {model} | {hand.split(':')[-1]} | {text_of(pair[0])} | {text_of(pair[1])} | {pair[1] / pair[0]:.2f} |")

if args.exhaustive:
    say()
    say("## All plans of one axis, two ranks, predicted")
    say()
    say("Every set of dims that `shard` splits by the axis, in every order that matters (a dim alone, or before `else`), with `zero` 0, 2 and 3 where it may be.")
    say()
    say("| model | profile | plans | best | predicted | auto | ratio |")
    say("|---|---|---|---|---|---|---|")
    for model in [name for name in args.exhaustive.split(",") if name]:
        sentences = []
        dims = DIMS[model]
        for n in range(1, len(dims) + 1):
            for chosen in itertools.combinations(dims, n):
                rest = [d for d in dims if d not in chosen]
                for other in [None] + rest:
                    rule = f"shard {', '.join(chosen)}" + (f" else {other}" if other else "") + " by tp"
                    sentences.append(rule)
                    if set(chosen) | {other} <= {"batch", "seq", None}:
                        sentences += [f"{rule}; zero {level} over tp" for level in (2, 3)]
        path = os.path.join(scratch, "all.cleave")
        with open(path, "w") as file:
            for i, sentence in enumerate(sentences):
                file.write(f"plan p{i} for {model} on (tp) {{ {sentence} }}\n")
        for profile in args.profiles.split(","):
            times = []
            for i, sentence in enumerate(sentences):
                seconds = predicted(model, f"{path}:p{i}", ["--mesh", "tp=2"], profile)
                if seconds is not None:
                    times.append((seconds, sentence))
            auto = predicted(model, "auto", ["--mesh", "tp=2"], profile)
            if not times:
                continue
            best = min(times)
            say(f"| {model} | {profile} | {len(times)} of {len(sentences)} | `{best[1]}` | {text_of(best[0])} | {text_of(auto)} | {auto / best[0]:.3f} |")

# The same plan every time.
for model in wanted:
    plans = {json.loads(cleave("plan", FILES[model], "--plan", "auto", "--ranks", "4", "--json", *sizes_of(model)).stdout)["text"]
             for _ in range(20)}
    if len(plans) != 1:
        failures.append(f"{model}: {len(plans)} different plans in 20 searches")
say()
say("20 searches of each model on 4 ranks gave the same bytes." if not failures else "FAILED: " + "; ".join(failures))
with open(args.out + ".new", "w") as file:
    file.write("\n".join(lines) + "\n")
os.rename(args.out + ".new", args.out)
sys.exit(1 if failures else 0)

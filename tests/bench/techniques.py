"""All techniques of data and tensor parallelism on one model, in one table.

  techniques.py [--cleave build/bin/cleave] [--text TEXT] [--steps 500] [--profile ethernet] [--out techniques.md]

Trains GPT-2 (--set, --batch, --seq) under each technique: on 2 ranks measured on this machine, on 2 and
on the ranks of --ranks emulated on a profile of models/clusters. Then what data parallelism gains on models of
several widths, and the memory of Pythia 6.9B. All by `cleave ... --json`. Ends with an error if the
losses part. The table is written with the machine and the commit it was made on.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
GPT2, PYTHIA = (os.path.join(ROOT, "models", f"{name}.cleave") for name in ("gpt2", "pythia"))
PYTHIA_69B = "vocab=50432,width=4096,layers=32,heads=32,head_dim=128,rotary=32"

# Name, axis, sentences of the plan.
DATA, HEADS = "shard batch by dp", "shard heads, ffn, vocab by tp"
TECHNIQUES = [
    ("data, overlap none", "dp", f"{DATA}; overlap none"),
    ("data, overlap layers", "dp", f"{DATA}; overlap layers"),
    ("data, overlap bucketed(1MB)", "dp", f"{DATA}; overlap bucketed(1MB)"),
    ("data, zero 1", "dp", f"{DATA}; zero 1 over dp"),
    ("data, zero 2", "dp", f"{DATA}; zero 2 over dp"),
    ("data, zero 3", "dp", f"{DATA}; zero 3 over dp"),
    ("tensor", "tp", HEADS),
    ("tensor and sequence", "tp", HEADS.replace(" by", " else seq by")),
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cleave", default=os.path.join(ROOT, "build", "bin", "cleave"))
parser.add_argument("--text", default=os.path.join(ROOT, "build", "data", "shakespeare.txt"))
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--profile", default="ethernet")
parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="emulated")
parser.add_argument("--set", default="width=128,layers=4,heads=4,head_dim=32")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--seq", type=int, default=64)
parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
parser.add_argument("--out", default=os.path.join(HERE, "techniques.md"))
args = parser.parse_args()

plans = tempfile.NamedTemporaryFile("w", suffix=".cleave", delete=False)


def plan_name(model, name):
    return model + "_" + "".join(c if c.isalnum() else "_" for c in name)


for model in ("gpt2", "pythia"):
    for name, axis, sentences in TECHNIQUES:
        plans.write(f"plan {plan_name(model, name)} for {model} on ({axis}) {{ {sentences} }}\n")
plans.close()


def cleave(*words):
    run = subprocess.run([args.cleave, *map(str, words), "--json"], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"cleave {' '.join(map(str, words))}\n{run.stderr}")
    return run.stdout


def under(model, technique, ranks):
    name, axis, _ = technique
    return ["--plan", f"{plans.name}:{plan_name(model, name)}", "--mesh", f"{axis}={ranks}"]


def train(plan, *more):
    """The last line of a training run: losses, speed, memory, collectives."""
    lines = cleave("train", GPT2, "--set", args.set, "--batch", args.batch, "--seq", args.seq, "--data", args.text,
                   "--steps", args.steps, *plan, *more).splitlines()
    return json.loads(lines[-1])


def explain(path, sizes, batch, seq, plan, *more):
    return json.loads(cleave("explain", path, "--set", sizes, "--batch", batch, "--seq", seq, *plan, *more))


def mib(count):
    return f"{count / 2**20:,.2f}"


def gib(count):
    return f"{count / 2**30:,.1f}"


def number(count):
    return f"{count:,.0f}"


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else ""


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def memory(m, unit):
    return [unit(m[kind]) for kind in ("params", "states", "arena", "total")]


def ring_bytes(record):
    return sum(c["ring_bytes"] for c in record["collectives"])


def progress(text):
    print(text, file=sys.stderr, flush=True)


#===--- all techniques on one model ---===#
rows, losses = [], {}
load = [os.getloadavg()[0]]


def row(name, ranks, record, measured_exposed):
    emulated = "emulated_seconds" in record
    losses[f"{name} on {ranks}" + (" emulated" if emulated else "")] = record["loss"]
    exposed = percent(record["emulated_exposed_seconds"], record["emulated_seconds"]) if emulated else measured_exposed
    speed = record["emulated_tokens_per_second" if emulated else "tokens_per_second"]
    rows.append([name, ranks, "emulated" if emulated else "measured", number(speed), exposed,
                 mib(ring_bytes(record)), *memory(record["memory"], mib), f"{record['loss']:.6f}"])


progress("one rank")
row("one rank", 1, train(["--plan", "none"], "--threads", 1), "")
row("one rank", 1, train(["--plan", "none"], "--emulate", args.profile), "")
for technique in TECHNIQUES:
    progress(technique[0])
    costs = explain(GPT2, args.set, args.batch, args.seq, under("gpt2", technique, 2), "--costs", "--measure",
                    "--threads", 2, "--steps", 20)
    row(technique[0], 2, train(under("gpt2", technique, 2), "--threads", 2),
        percent(costs["measured_collectives_exposed_seconds"], costs["measured_step_seconds"]))
    for ranks in args.ranks:
        row(technique[0], ranks, train(under("gpt2", technique, ranks), "--emulate", args.profile), "")

#===--- data parallelism over model sizes ---===#
gains = []
for width in args.widths:
    progress(f"width {width}")
    sizes = f"width={width},layers=4,heads=4,head_dim={width // 4}"

    def seconds(plan):
        return explain(GPT2, sizes, args.batch, args.seq, plan, "--costs", "--emulate", args.profile)

    alone = seconds(["--plan", "none"])["emulated_step_seconds"]
    cells = []
    for ranks in args.ranks:
        costs = seconds(under("gpt2", TECHNIQUES[1], ranks))
        step = costs["emulated_step_seconds"]
        cells += [f"{alone / step:.2f}", percent(costs["emulated_collectives_exposed_seconds"], step)]
    params = explain(GPT2, sizes, args.batch, args.seq, ["--plan", "none"])["params"]
    gains.append([width, number(params), f"{alone * 1e3:.1f} ms", *cells])

#===--- a real size ---===#
sizes_69b = []
for technique in [("one rank", None, None), *TECHNIQUES]:
    progress(f"Pythia 6.9B: {technique[0]}")
    ranks = 8 if technique[1] else 1
    plan = under("pythia", technique, ranks) if technique[1] else ["--plan", "none"]
    told = explain(PYTHIA, PYTHIA_69B, 8, 2048, plan)
    costs = explain(PYTHIA, PYTHIA_69B, 8, 2048, plan, "--costs", "--cluster", "nvlink-8")
    step = costs["predicted_step_seconds"]
    sizes_69b.append([technique[0], ranks, *memory(told["memory"], gib),
                      gib(sum(c["ring_bytes"] * c["times"] for c in told["collectives"])), f"{step:.2f} s",
                      percent(costs["predicted_collectives_exposed_seconds"], step)])
os.unlink(plans.name)
load.append(os.getloadavg()[0])

#===--- the report ---===#
reference = losses["one rank on 1"]
largest = max(abs(loss - reference) / reference for loss in losses.values())


def first_line(command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown processor"


commit = first_line(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])
if first_line(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"]):
    commit += " with changes"
memory_header = ["params", "optimizer", "arena", "memory"]
report = f"""# All techniques in one table

Made by `tests/bench/techniques.py --steps {args.steps} --profile {args.profile}`; commit {commit}; {os.cpu_count()} cores of
{processor()}. Emulated rows: virtual clocks on the profile `{args.profile}` of `models/clusters`, one thread a rank, CPU time of
this machine; measured rows: ranks as threads on these cores, one thread each. Load average at the start and the end: {load[0]:.1f}, {load[1]:.1f}.

## GPT-2 of {args.set}, batch {args.batch} x {args.seq}, AdamW, float32

Tokens a second; exposed: the share of a step in which a rank stands still for communication (measured rows: by `explain --costs
--measure`); MiB of a rank; loss after {args.steps} steps. All losses lie within {largest:.1e} of one rank's. Without accumulation zero 1
and zero 2 are the same program, and zero 0 is `overlap layers`.

{table(["technique", "ranks", "", "tokens/s", "exposed", "ring MiB a step", *memory_header, "loss"], rows)}
## What data parallelism gains on models of several sizes

The same batch over more ranks, `overlap layers`, 4 layers, emulated on `{args.profile}`: a step of one rank over a step of so many.

{table(["width", "params", "one rank", *(cell for r in args.ranks for cell in (f"gain, {r} ranks", "exposed"))], gains)}
## Pythia 6.9B

{PYTHIA_69B}, batch 8 x 2048, AdamW, float32: what a rank's memory would hold (GiB) and a step's ring would move (GiB a rank), as
compiled; nothing was run. Step time and exposed share are predicted for `nvlink-8` by the roofline of its devices.

{table(["technique", "ranks", *memory_header, "ring", "step, predicted", "exposed, predicted"], sizes_69b)}"""
with open(args.out + ".part", "w", encoding="utf-8") as out:
    out.write(report)
os.replace(args.out + ".part", args.out)
print(report)
if largest > 1e-3:
    sys.exit(f"the losses part: {losses}")

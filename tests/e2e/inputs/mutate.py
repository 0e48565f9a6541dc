"""mutate.py CLEAVE FILE KIND,... [options of `cleave check`]

Puts each fault of these kinds into each collective of the sharded training step of GPT-2, one at a
time, and has `cleave check` look for it. It must exit with 3 and name the place: for a collective of
the forward pass the value on its line (`cleave explain` has the lines), for one of the way back the
param whose gradient it comes to first, for one of the optimizer the gradient's norm.

Three things are no change in mathematics and must stay unnoticed (else this list is wrong):
- A maximum that is taken twice.
- The cross-entropy's maximum over the vocabulary's parts becoming a sum: it only shifts the logits
  before they are exponentiated, on all of these ranks alike, and the shift is added back. (Dropped or
  over another axis, each rank has a shift of its own, and that is noticed.)
- Whatever happens to the gradient of a key bias. It moves all
  scores of a query alike, which softmax does not see: for each row of the batch and each head its
  gradient is 0, and so is each partial sum.

The collectives come from `cleave compile --emit=sharded`, in the order that `--mutate KIND:N` counts.
"""
import collections
import json
import re
import subprocess
import sys

Collective = collections.namedtuple("Collective", "reduction axes phase why type")


def listed(cleave, file, options):
    """The collectives of the sharded step, in program order."""
    command = [cleave, "compile", file, "--emit=sharded", "--dtype", "f64", "--batch", "3", "--seq",
               "7", *options]  # the sizes that `check` takes
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = []
    for line in text.splitlines():
        if not re.search(r"= cleave\.(all_reduce|all_gather|reduce_scatter|all_to_all) ", line):
            continue
        match = re.search(r"= cleave\.all_reduce +(\w+) %\w+ over \[#cleave\.axis<(\w+)>\] \{(.*)\} : "
                          r"<(.*)> -> <", line)
        if not match:
            sys.exit(f"megatron has all-reduces over one axis only: {line}")
        notes = dict(re.findall(r'cleave\.(\w+) = "([^"]*)"', match[3]))
        found.append(Collective(match[1], match[2], notes.get("phase", "forward"), notes["why"],
                                match[4]))
    return found


def forward_lines(cleave, file, options):
    """The source lines, "FILE:LINE:", of the forward pass's collectives by (axes, why)."""
    command = [cleave, "explain", file, "--json", "--batch", "3", "--seq", "7", *options]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = collections.defaultdict(set)
    for site in json.loads(text)["collectives"]:
        if site["phase"] == "forward":
            lines[site["axes"], site["rule"]].add(site["location"].rpartition(":")[0] + ":")
    return lines


def names_the_place(text, c, lines):
    place = re.search(r"differs first,.* at ([^\n]*:\d+:)\d+\n", text)
    if not place:
        return False
    if c.phase == "forward":
        return "way back" not in text and place[1] in lines[c.axes, c.why]
    if c.phase == "backward":
        return "all named values agree; on the way back, the gradient of '" in text
    return "all gradients agree; 'gradient_norm' of step 1 differs first" in text


def key_bias(collectives):
    """The numbers of those that see nothing but the key bias's gradient."""
    # On the way back the biases come as value, key, query. The norm is reduced once for all params.
    back = [n for n, c in enumerate(collectives) if c.phase == "backward" and c.axes == "dp"
            and re.match(r"f64 \[heads=\d+ \{tp\}, head_dim=\d+\]", c.type)]
    norm = [n for n, c in enumerate(collectives) if c.phase == "optimizer"]
    if len(back) not in (0, 3) or len(norm) != 1:
        sys.exit(f"where is the key bias? {back} {norm}")
    return set(back[1:2])


def no_change(kind, number, collectives):
    c = collectives[number]
    if c.reduction == "max" and kind in ("double", "kind"):
        return c.phase == "forward" and c.why == "reduce over the split vocab leaves a partial max"
    return number in key_bias(collectives)


def main(cleave, file, kinds, *options):
    collectives = listed(cleave, file, options)
    if not collectives:
        sys.exit("no collectives")
    lines = forward_lines(cleave, file, options)
    wrong = unnoticed = 0
    for kind in kinds.split(","):
        for number, c in enumerate(collectives):
            run = subprocess.run([cleave, "check", file, "--quiet", *options, "--mutate",
                                  f"{kind}:{number}"], capture_output=True, text=True, timeout=60)
            verdict = {0: "unnoticed", 3: "found"}.get(run.returncode, f"exit {run.returncode}")
            expected = "unnoticed" if no_change(kind, number, collectives) else "found"
            good = verdict == expected
            if verdict == "found" and not names_the_place(run.stderr, c, lines):
                good = False
            wrong += not good
            unnoticed += verdict == "unnoticed"
            print(f"{'' if good else 'WRONG '}{kind}:{number} {c.reduction} over {c.axes}, {c.phase}, "
                  f"{c.why}: {verdict}", flush=True)
            if not good:
                print(run.stdout[-2000:], run.stderr[-2000:], sep="\n")
    # That none has been left out.
    past = subprocess.run([cleave, "check", file, "--quiet", *options, "--mutate",
                           f"drop:{len(collectives)}"], capture_output=True, text=True, timeout=60)
    if past.returncode != 1 or f"there are {len(collectives)} collectives" not in past.stderr:
        sys.exit(f"the step has more collectives than {len(collectives)}: {past.stderr}")
    faults = len(collectives) * len(kinds.split(","))
    print(f"{faults} faults, {unnoticed} of them no change in mathematics, {wrong} wrong verdicts")
    return 3 if wrong else 0


sys.exit(main(*sys.argv[1:]))

"""mutate.py CLEAVE FILE --kinds KIND,... [options of `cleave check`]

Puts every fault of these kinds into every collective of the sharded training step, one at a time,
and has `cleave check` look for it: it must exit with 3 and name a place in FILE. What may stay
unnoticed is what is no change in mathematics; `no_change` says which, from the collective alone,
and each of those must stay unnoticed or the list is stale.

The collectives come from `cleave compile --emit=sharded`, in the order that `--mutate KIND:N`
counts; both must agree on how many there are.
"""
import collections
import re
import subprocess
import sys

Collective = collections.namedtuple("Collective", "op reduction axes phase why line")


def listed(cleave, file, options):
    """The collectives of the sharded step, in program order."""
    # `check` takes 3 rows of 7 tokens.
    text = subprocess.run([cleave, "compile", file, "--emit=sharded", "--dtype", "f64", "--batch",
                           "3", "--seq", "7", *options], check=True, capture_output=True,
                          text=True).stdout
    found = []
    for line in text.splitlines():
        op = re.search(r"= cleave\.(all_reduce|all_gather|reduce_scatter|all_to_all)\b", line)
        if not op:
            continue
        reduction = re.search(r"cleave\.\w+\s+(sum|max|min)\b", line)
        phase = re.search(r'cleave\.phase = "(\w+)"', line)
        why = re.search(r'cleave\.why = "([^"]*)"', line)
        axes = re.findall(r"#cleave\.axis<(\w+)", line.split("{cleave.")[0])
        found.append(Collective(op[1], reduction[1] if reduction else "", tuple(axes),
                                phase[1] if phase else "forward", why[1] if why else "", line))
    return found


def main(arguments):
    cleave, file, _, kinds, *options = arguments
    collectives = listed(cleave, file, options)
    print(f"{len(collectives)} collectives")
    bad = 0
    for kind in kinds.split(","):
        for number, c in enumerate(collectives):
            run = subprocess.run([cleave, "check", file, "--quiet", *options, "--mutate",
                                  f"{kind}:{number}"], capture_output=True, text=True, timeout=60)
            place = re.search(re.escape(file) + r":\d+:\d+", run.stderr)
            verdict = {0: "unnoticed", 3: "found"}.get(run.returncode, f"exit {run.returncode}")
            print(f"{kind}:{number:<3} {c.op} {c.reduction} over {','.join(c.axes)} "
                  f"({c.phase}; {c.why}): {verdict} {place and place[0]} {run.stderr[:150] if run.returncode==3 else run.stderr[-300:]}", flush=True)


main(sys.argv[1:])

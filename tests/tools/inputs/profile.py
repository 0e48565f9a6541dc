"""The structure of a profile that `cleave calibrate` wrote (argument 1)."""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
profile = json.loads(text)
assert profile["name"] == "this"
assert {c["kind"] for c in profile["collectives"]} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
rates = profile["compute"]["rates"]
assert (rates[0]["threads"], rates[0]["ranks"]) == (1, 1)


def numbers(value):
    if isinstance(value, (dict, list)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from numbers(entry)
    elif isinstance(value, float):
        yield value


for r in rates:
    assert {p["form"] for p in r["products"]} == {"NN", "NT", "TN"}
    assert {(a["pass"], a["causal"]) for a in r["attention"]} == {(p, c) for p in ("forward", "backward") for c in (0, 1)}
    assert set(r["pass_gfunctions"]) == {"exp", "tanh", "erf", "sin", "pow", "random"}
    assert r["launch_us"] < 1000
for x in numbers(profile):
    assert x > 0 and float(f"{x:.4g}") == x, x
# A person reads it: a list of numbers stands on one line.
assert max(len(line) for line in text.splitlines()) < 200 and len(text.splitlines()) < 2000

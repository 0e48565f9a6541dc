"""compare.py FILE STEPS: what `cleave compare --json` says adds up. Each verdict is that of its
pairs; the lines of a plan add up to its time and its bytes, and the lines' differences to the
difference of the times."""
import json
import math
import statistics
import sys

data = json.load(open(sys.argv[1]))
steps = int(sys.argv[2])
plans = {plan["plan"]: plan for plan in data["plans"]}
first = data["plans"][0]
seen = "emulated" if "emulated_on" in data else "measured"


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)


def times(plan):
    return plan["emulated_seconds_of_steps" if seen == "emulated" else "seconds_of_steps"]


def exposed(line, how):
    parts = sum(c[f"{how}_exposed_seconds"] for c in line["collectives"])
    return parts + line["compute"][f"{how}_seconds"]


assert "verdict" not in first
for plan in data["plans"]:
    assert len(times(plan)) == steps and min(times(plan)) > 0
    lines = plan["lines"]
    assert near(sum(exposed(line, "predicted") for line in lines), plan["predicted_seconds"])
    if seen == "emulated":
        mean = sum(times(plan)) / steps
        assert near(sum(exposed(line, seen) for line in lines), mean)
    bytes_of, calls_of = {}, {}
    for line in lines:
        for c in line["collectives"]:
            bytes_of[c["kind"]] = bytes_of.get(c["kind"], 0) + c["ring_bytes"]
            calls_of[c["kind"]] = calls_of.get(c["kind"], 0) + c["times"]
    counted = plan["collectives_per_step"]
    assert bytes_of == {kind: c["ring_bytes"] for kind, c in counted.items()}, (bytes_of, counted)
    assert calls_of == {kind: c["calls"] for kind, c in counted.items()}, (calls_of, counted)
    if plan is first:
        continue
    v = plan["verdict"]
    ratios = sorted(b / a for a, b in zip(times(first), times(plan)))
    assert v["against"] == first["plan"]
    assert v["pairs"] == steps == v["faster"] + v["slower"] + v["equal"]
    assert v["faster"] == sum(r < 1 for r in ratios)
    assert near(v["ratio"], statistics.median(ratios))
    n, k = v["faster"] + v["slower"], min(v["faster"], v["slower"])
    p = min(1, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
    assert near(v["p"], p), (v, p)
    assert v["settled"] == (steps >= 6 and p <= 0.05)
    if steps < 6:
        assert v["interval_95"] is None
    else:
        # The chance that the median lies beyond the r-th ratio on either side is at most 5 %, and
        # with the next one more.
        low, high = v["interval_95"]
        r = ratios.index(low) + 1
        assert high == ratios[-r]
        beyond = [2 * sum(math.comb(steps, i) for i in range(m)) / 2**steps for m in (r, r + 1)]
        assert beyond[0] <= 0.05 < beyond[1], beyond

assert len(data["differences"]) == len(data["plans"]) - 1
for d in data["differences"]:
    a, b = plans[d["first"]], plans[d["second"]]
    assert a is first
    difference = d["predicted_difference_seconds"]
    assert near(difference, b["predicted_seconds"] - a["predicted_seconds"])
    by_line = [line["predicted_difference_seconds"] for line in d["lines"]]
    scale = a["predicted_seconds"] + b["predicted_seconds"]
    assert abs(sum(by_line) - difference) < 1e-9 * scale, (sum(by_line), difference)
    assert [abs(x) for x in by_line] == sorted((abs(x) for x in by_line), reverse=True)
    for line in d["lines"]:
        sides = {}
        for side in ("first", "second"):
            sides[side] = line["compute"][side]["predicted_seconds"] + sum(
                c[side]["predicted_exposed_seconds"] for c in line["collectives"])
        change = sides["second"] - sides["first"]
        assert abs(change - line["predicted_difference_seconds"]) < 1e-9 * scale
    assert len({(line["file"], line["line"]) for line in d["lines"]}) == len(d["lines"])
    mean = sum(times(b)) / steps - sum(times(a)) / steps
    assert abs(mean - d[f"{seen}_difference_seconds"]) < 1e-9 * sum(times(a))
    if seen == "emulated":
        by_line = sum(line["emulated_difference_seconds"] for line in d["lines"])
        assert abs(by_line - mean) < 1e-9 * sum(times(a))
    # Lines have the layouts of one plan that the other has not.
    for value in d["values"]:
        assert value["line"] and not set(value["first"]) & set(value["second"])
        assert value["first"] or value["second"]
    if a["mesh"] != b["mesh"]:
        assert d["values"]
    for argument in d["arguments"]:
        assert argument["first"] != argument["second"]

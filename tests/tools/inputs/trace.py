"""trace.py FILE RANKS RUNS: a trace has the same events for every run and every rank, none
overlapping another of its rank, each with its name, kind and lines."""
import collections
import json
import sys

ranks, runs = int(sys.argv[2]), int(sys.argv[3])
events = json.load(open(sys.argv[1]))["traceEvents"]
names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert names == {r: f"rank {r}" for r in range(ranks)}, names
work = [e for e in events if e["ph"] == "X"]
count = collections.Counter((e["tid"], e["args"]["step"]) for e in work)
assert count and set(count.values()) == {runs}, set(count.values())
assert len({tid for tid, _ in count}) == ranks
for rank in range(ranks):
    mine = sorted((e for e in work if e["tid"] == rank), key=lambda e: e["ts"])
    for a, b in zip(mine, mine[1:]):
        assert a["ts"] + a["dur"] <= b["ts"] + 0.5, (a, b)
assert {e["cat"] for e in work} >= {"GEMM", "attention", "elementwise", "optimizer", "collectives"}
assert all(e["name"] for e in work)
assert sum("gpt2.cleave:" in e["args"]["source"] for e in work) > 0.9 * len(work)

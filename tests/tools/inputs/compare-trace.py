"""compare-trace.py FILE RANKS...: the Trace Event Format. A process for each plan, with so many
ranks; in it a thread for each rank and one for its stream if it communicates; the times of each
thread are in order and nothing overlaps; the transfers on the stream are those of the rank."""
import collections
import json
import sys

data = json.load(open(sys.argv[1]))
ranks = [int(n) for n in sys.argv[2:]]
assert data["displayTimeUnit"] == "ms"
events = data["traceEvents"]
processes, threads = {}, collections.defaultdict(dict)
work = collections.defaultdict(list)
for e in events:
    assert e["ph"] in ("M", "X") and isinstance(e["pid"], int), e
    if e["ph"] == "M" and e["name"] == "process_name":
        processes[e["pid"]] = e["args"]["name"]
    elif e["ph"] == "M" and e["name"] == "thread_name":
        threads[e["pid"]][e["tid"]] = e["args"]["name"]
    elif e["ph"] == "M":
        assert e["name"] == "thread_sort_index" and isinstance(e["args"]["sort_index"], int)
    else:
        assert e["ts"] >= 0 and e["dur"] >= 0 and e["name"] and e["cat"], e
        assert e["tid"] in threads[e["pid"]], "a thread is named before its events"
        work[e["pid"], e["tid"]].append(e)
assert list(processes) == list(range(len(ranks))), processes
for pid, count in enumerate(ranks):
    streams = {f"rank {r} communication" for r in range(count)
               if any(e["cat"] == "collectives" for e in work[pid, r])}
    assert pid or streams, "the first plan is one that communicates"
    assert set(threads[pid].values()) == {f"rank {r}" for r in range(count)} | streams
    for tid, name in threads[pid].items():
        mine = work[pid, tid]
        assert mine
        for a, b in zip(mine, mine[1:]):
            assert a["ts"] + a["dur"] <= b["ts"] + 0.5, (a, b)
        if "communication" in name:
            assert {e["cat"] for e in mine} == {"collectives"}
            clock = work[pid, tid - count]
            waits = {e["args"]["step"] for e in clock if e["cat"] == "collectives"}
            assert {e["args"]["step"] for e in mine} <= waits
        else:
            assert {e["cat"] for e in mine} >= {"GEMM", "elementwise", "optimizer"}
    assert min(e["ts"] for tid in threads[pid] for e in work[pid, tid]) == 0

"""What `explain` says of `gathered again` and `gathered kept` is what the two programs differ in.

usage: gathered.py COMMAND...   (an `explain` of a plan on (dp, tp))
"""
import json
import subprocess
import sys


def told(*options):
    command = sys.argv[1:] + ["--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ring(program):
    return sum(sum["ring_bytes"] for sum in program["sums"])


for options in (
    ["--mesh", "tp=3", "--batch", "2", "--seq", "50"],
    ["--mesh", "tp=3", "--batch", "2", "--seq", "50", "--recompute", "none"],
    ["--mesh", "dp=2,tp=2", "--batch", "8", "--seq", "45", "--accumulate", "2"],
    ["--mesh", "tp=2", "--batch", "4", "--seq", "61", "--recompute", "every(2)"],
    ["--mesh", "tp=2", "--batch", "2", "--seq", "61", "--precision", "bf16"],
):
    again, kept = (told(*options, "--gathered", how) for how in ("again", "kept"))
    saved = [told(*options, "--activations", "--gathered", how) for how in ("again", "kept")]
    said = saved[0]["gathered"]
    assert not said["kept"] and saved[1]["gathered"] == {**said, "kept": True}, saved
    assert said["again_ring_bytes"] > 0, (options, said)
    assert ring(again) - ring(kept) == said["again_ring_bytes"], (options, ring(again), ring(kept), said)
    # What layers save, which the arena holds.
    bytes_ = [sum(l["bytes"] * l["layers"] for l in s["layers"]) for s in saved]
    layers = sum(
        (sum(i["bytes"] for i in l["inputs"]) - l["freed_bytes"]) * l["layers"]
        for l in said["layers"]
        if l["dim"]
    )
    assert bytes_[1] - bytes_[0] == layers > 0, (options, bytes_, said)
    # Where ranks have shards of what is saved, that is gone: none of the above, but of "none".
    assert any(l["freed_bytes"] for l in said["layers"]) == ("none" in options), (options, said)
    arena = kept["memory"]["arena"] - again["memory"]["arena"]
    assert 0.5 * layers <= arena <= said["kept_bytes"], (options, arena, said)

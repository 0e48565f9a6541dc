"""roundtrip.py CLEAVE RUNS MODEL:MESH:CLUSTER...: what the search finds, written as a plan, is the
same program; and searching again gives the same text. MESH: dp=2,tp=2, or a number of ranks."""
import os
import subprocess
import sys
import tempfile

cleave, runs = sys.argv[1], int(sys.argv[2])


def run(*args):
    done = subprocess.run([cleave, *args], capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


for case in sys.argv[3:]:
    model, mesh, cluster = case.split(":")
    if os.path.basename(model) == "mlp.cleave":
        sizes = ["--batch", "6"]
    else:
        sizes = ["--batch", "6", "--seq", "10"]
    search = ["--plan", "auto", *(["--ranks", mesh] if mesh.isdigit() else ["--mesh", mesh])]
    search += ["--cluster", cluster, *sizes, "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        texts = set()
        for i in range(runs):
            out = os.path.join(folder, "found.cleave")
            run("plan", model, *search, "--out", out)
            texts.add(open(out).read())
        if len(texts) != 1:
            sys.exit(f"{case}: {len(texts)} texts in {runs} runs")
        emit = ["--emit=scheduled", "--cluster", cluster, *sizes, "--quiet"]
        found = run("compile", model, *search, "--emit=scheduled")
        again = run("compile", model, "--plan", f"{out}:found", *emit)
        if found != again:
            a, b = found.splitlines(), again.splitlines()
            where = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            sys.exit(f"{case}: the program of the plan's text is another, from line {where + 1} on:\n"
                     f"{a[where:where + 1]}\n{b[where:where + 1]}\n{next(iter(texts))}")
        print(f"{case}: {len(found)} bytes of program, {runs} runs, the same")

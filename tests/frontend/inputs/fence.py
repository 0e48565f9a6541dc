"""fence.py FILE KIND N: prints the N-th (from 1) fenced block of this kind of a Markdown file."""
import sys

path, kind, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
found, inside = 0, False
with open(path, encoding="utf-8") as lines:
    for line in lines:
        if line.startswith("```"):
            inside = not inside
            found += inside and line[3:].strip() == kind
            mine = inside and line[3:].strip() == kind and found == wanted
        elif inside and mine:
            sys.stdout.write(line)
sys.exit(0 if found >= wanted else f"{path} has only {found} blocks of {kind}")

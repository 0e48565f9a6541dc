#!/usr/bin/env python3
"""Compares the tensors of two safetensors files by Cleave's rules. Python 3 and NumPy only.

    compare.py EXPECTED CANDIDATE                       float64, integers
    compare.py EXPECTED CANDIDATE --one-rank ONE        float32: EXPECTED holds the float64 values
    compare.py A B --exact                              the same bits

float64   max|candidate - expected| <= 1e-11 * max|expected|, per tensor (--rtol changes the 1e-11).
float32   max|candidate - expected| <= 4 * max|one_rank - expected|, or within the floor: 8 ulp
          (float32) of the expected tensor's largest magnitude. ONE is the same work on one rank
          in float32. Without --one-rank, --rtol must be given.
zero      A tensor whose expected values are all below 1e-12 of the largest magnitude in its group
          is zero in mathematics (a key bias's gradient): it is measured against that largest
          magnitude in place of its own. A group is what shares the name up to the last '/'
          (gradients, `grad.…`, are a group of their own); it is taken from all of EXPECTED,
          whatever --only chooses.
others    Integers and booleans must be equal. NaNs and infinities must stand in the same places.

Every tensor of EXPECTED must be in CANDIDATE with the same shape; further tensors of CANDIDATE are
counted, not compared (--both makes them a difference).
Exit: 0 equal, 1 wrong use or an unreadable file, 3 something differs.
"""

import argparse
import fnmatch
import re
import sys

import numpy as np

import safetensors_np

F64_RTOL = 1e-11
F32_FACTOR = 4.0
F32_FLOOR_ULPS = 8
ZERO = 1e-12


class UsageError(Exception):
    pass


def largest(array):
    """The largest finite magnitude, 0 for none."""
    if array.dtype.kind != "f":
        return 0.0
    values = np.abs(array.astype(np.float64))
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else 0.0


def ulp32(magnitude):
    return float(np.spacing(np.float32(magnitude)))


def error(expected, candidate):
    """(max abs error over finite places, None) or (inf, reason)."""
    a, b = expected.astype(np.float64), candidate.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf, "NaN in different places"
    infinite = np.isinf(a) | np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite]):
        return np.inf, "infinities in different places"
    finite = np.isfinite(a)
    return (float(np.abs(a[finite] - b[finite]).max()) if finite.any() else 0.0), None


def group(name):
    head, _, last = name.rpartition("/")
    return head, last.startswith("grad.")


def compare(expected, candidate, one_rank=None, rtol=None, exact=False, both=False, chosen=None,
            atol=0.0):
    """Rows (name, verdict, error, bound, how, where) for two {name: array}; one_rank likewise."""
    groups = {}
    for name, array in expected.items():
        groups[group(name)] = max(groups.get(group(name), 0.0), largest(array))
    rows = []
    for name in sorted(expected if chosen is None else chosen):
        overall = groups[group(name)]
        want = expected[name]
        if name not in candidate:
            rows.append((name, "MISSING", None, None, "not in the candidate", ""))
            continue
        got = candidate[name]
        if want.shape != got.shape:
            how = f"shape {list(want.shape)} expected, {list(got.shape)} found"
            rows.append((name, "SHAPE", None, None, how, ""))
            continue
        if want.dtype.kind != "f" or got.dtype.kind != "f" or exact:
            same = want.dtype == got.dtype and want.tobytes() == got.tobytes()
            if not exact:
                same = np.array_equal(want, got)
            rows.append((name, "ok" if same else "DIFFERS", None, None, "exact", ""))
            continue
        off, reason = error(want, got)
        scale = largest(want)
        zero = scale <= ZERO * overall
        if zero:
            scale = overall
        if got.dtype == np.float64 or rtol is not None:
            bound = (F64_RTOL if rtol is None else rtol) * scale
            how = "relative"
        else:
            if one_rank is None:
                raise UsageError(f"{name} is {got.dtype}: give --one-rank or --rtol")
            if name not in one_rank or one_rank[name].shape != want.shape:
                rows.append((name, "MISSING", None, None, "not in the one-rank file", ""))
                continue
            own, one_reason = error(want, one_rank[name])
            if one_reason:
                rows.append((name, "DIFFERS", None, None, f"one-rank file: {one_reason}", ""))
                continue
            floor = F32_FLOOR_ULPS * ulp32(scale)
            bound = max(F32_FACTOR * own, floor)
            how = "4 x one rank" if F32_FACTOR * own >= floor else "8 ulp"
        if zero:
            how += ", zero"
        if bound < atol:
            bound, how = atol, "absolute"
        good = off <= bound
        where = ""
        if reason:
            how = reason
        elif not good and want.size:
            with np.errstate(invalid="ignore"):  # infinity - infinity
                delta = np.abs(want.astype(np.float64) - got.astype(np.float64))
            worst = int(np.argmax(np.where(np.isfinite(delta), delta, -1.0)))
            index = np.unravel_index(worst, want.shape)
            where = f"[{', '.join(str(int(i)) for i in index)}] {want[index]!s} / {got[index]!s}"
        rows.append((name, "ok" if good else "DIFFERS", off, bound, how, where))
    if both:
        for name in sorted(set(candidate) - set(expected)):
            rows.append((name, "EXTRA", None, None, "not in the expected file", ""))
    return rows


def rename(tensors, rules):
    result = {}
    for name, array in tensors.items():
        for rule in rules:
            pattern, _, text = rule.partition("=")
            name = re.sub(pattern, text, name)
        if name in result:
            raise UsageError(f"two tensors are called {name} after --rename")
        result[name] = array
    return result


def table(rows, quiet):
    width = max([len(r[0]) for r in rows] + [6])
    print(f"{'tensor':<{width}}  {'verdict':<8} {'error':>10} {'bound':>10}  rule")
    for name, verdict, off, bound, how, where in rows:
        if quiet and verdict == "ok":
            continue
        left = "" if off is None else f"{off:.3e}"
        right = "" if bound is None else f"{bound:.3e}"
        print(f"{name:<{width}}  {verdict:<8} {left:>10} {right:>10}  {how}"
              + (f"  at {where} (expected / found)" if where else ""))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expected")
    parser.add_argument("candidate")
    parser.add_argument("--one-rank", metavar="FILE", help="the float32 values of one rank")
    parser.add_argument("--rtol", type=float, help="relative tolerance in place of the rules")
    parser.add_argument("--atol", type=float, default=0.0, help="an error always allowed")
    parser.add_argument("--exact", action="store_true", help="the same types and bits")
    parser.add_argument("--both", action="store_true", help="no further tensors in CANDIDATE")
    parser.add_argument("--only", action="append", metavar="GLOB",
                        help="only these names of EXPECTED")
    parser.add_argument("--skip", action="append", default=[], metavar="GLOB",
                        help="not these names of EXPECTED")
    parser.add_argument("--rename", action="append", default=[], metavar="REGEX=TEXT",
                        help="applied to the names of CANDIDATE and ONE before comparing")
    parser.add_argument("--quiet", action="store_true", help="print only what differs")
    try:
        options = parser.parse_args(arguments)
    except SystemExit as leaving:
        return 1 if leaving.code else 0
    try:
        expected = safetensors_np.load(options.expected)
        candidate = rename(safetensors_np.load(options.candidate), options.rename)
        one_rank = None
        if options.one_rank:
            one_rank = rename(safetensors_np.load(options.one_rank), options.rename)
        globs = options.only or ["*"]
        chosen = [n for n in expected if any(fnmatch.fnmatchcase(n, g) for g in globs)
                  and not any(fnmatch.fnmatchcase(n, g) for g in options.skip)]
        if not chosen:
            raise UsageError("nothing to compare: no tensor of the expected file is chosen")
        rows = compare(expected, candidate, one_rank, options.rtol, options.exact, options.both,
                       chosen, options.atol)
    except (UsageError, OSError, ValueError, re.error) as failure:
        print(f"compare.py: {failure}", file=sys.stderr)
        return 1
    table(rows, options.quiet)
    bad = sum(row[1] != "ok" for row in rows)
    extra = len(set(candidate) - set(expected))
    note = f", {extra} further in the candidate" if extra and not options.both else ""
    print(f"{len(rows) - bad} of {len(rows)} equal{note}")
    return 3 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

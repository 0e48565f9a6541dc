"""Compares the search for the cheapest choices (passes/search) with an ILP solver, HiGHS.

  solve_ilp.py --tool build/bin/minimize-file FILE.json [--memory BYTES]   one problem
  solve_ilp.py --tool build/bin/minimize-file --random 200                 random ones, also within a memory limit
  solve_ilp.py FILE.json --lp OUT.lp                                       the problem as an LP file

A 0/1 variable stands for each choice and for each allowed entry of each table over two variables
or more; an entry's variables sum to its choice's, for each variable of the table (the usual
marginalisation constraints, which make the relaxation tight). Needs `highspy` from PyPI, in an
environment of its own: this is run by hand, not by ctest.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time

import highspy


def build(problem, memory_limit=None):
    """The HiGHS model; None if some variable has no allowed choice."""
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.0)
    sizes = problem["sizes"]
    costs, bytes_ = [], []

    def column(cost, memory):
        costs.append(cost)
        bytes_.append(memory)
        return len(costs) - 1

    rows = []  # (lower, upper, columns, coefficients)
    choices = [[column(0.0, 0.0) for _ in range(size)] for size in sizes]
    forbidden = set()
    offset = memory_offset = 0.0
    for of_variable in choices:
        rows.append((1.0, 1.0, of_variable, [1.0] * len(of_variable)))
    for table in problem["tables"]:
        variables, memory = table["variables"], table["memory"] or [0.0] * len(table["costs"])
        cost_of = [math.inf if cost is None else cost for cost in table["costs"]]
        if not variables:
            offset += cost_of[0]
            memory_offset += memory[0]
        elif len(variables) == 1:
            for choice, cost in zip(choices[variables[0]], range(len(cost_of))):
                if math.isinf(cost_of[cost]):
                    forbidden.add(choice)
                else:
                    costs[choice] += cost_of[cost]
                    bytes_[choice] += memory[cost]
        else:
            marginal = {}
            for entry, combination in enumerate(itertools.product(*(range(sizes[v]) for v in variables))):
                if math.isinf(cost_of[entry]):
                    continue
                new = column(cost_of[entry], memory[entry])
                for variable, value in zip(variables, combination):
                    marginal.setdefault((variable, value), []).append(new)
            for variable in variables:
                for value in range(sizes[variable]):
                    entries = marginal.get((variable, value), [])
                    rows.append((0.0, 0.0, entries + [choices[variable][value]], [1.0] * len(entries) + [-1.0]))
    if math.isinf(offset):
        return None
    if memory_limit is not None:
        used = [i for i, amount in enumerate(bytes_) if amount]
        rows.append((-highspy.kHighsInf, memory_limit - memory_offset, used, [bytes_[i] for i in used]))

    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(costs), len(rows)
    model.col_cost_ = costs
    model.col_lower_ = [0.0] * len(costs)
    model.col_upper_ = [0.0 if i in forbidden else 1.0 for i in range(len(costs))]
    model.row_lower_ = [row[0] for row in rows]
    model.row_upper_ = [row[1] for row in rows]
    model.offset_ = offset
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(costs)
    starts, index, value = [0], [], []
    for row in rows:
        index += row[2]
        value += row[3]
        starts.append(len(index))
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = starts, index, value
    highs.passModel(model)
    return highs


def ilp(problem, memory_limit=None):
    """The least cost (infinity: nothing is allowed), and the seconds it took."""
    highs = build(problem, memory_limit)
    if highs is None:
        return math.inf, 0.0
    start = time.perf_counter()
    highs.run()
    seconds = time.perf_counter() - start
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return highs.getInfo().objective_function_value, seconds
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return math.inf, seconds
    sys.exit(f"HiGHS ended with {highs.modelStatusToString(status)}")


def ours(tool, file, memory_limit=None):
    command = [tool, file] + ([] if memory_limit is None else [repr(float(memory_limit))])
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(tool, file, problem, memory_limit=None):
    """The two results, and what is wrong with ours (or nothing)."""
    result = ours(tool, file, memory_limit)
    best, seconds = ilp(problem, memory_limit)
    if result.get("error"):
        return result, best, seconds, None if math.isinf(best) else "refused, but there is a solution"
    slack = 1e-6 * max(1e-12, abs(best))  # HiGHS's own
    if result["lower_bound"] > best + slack or result["cost"] < best - slack:
        return result, best, seconds, "the minimum is not between the bound and the cost"
    if result["exact"] and result["cost"] > best + slack:
        return result, best, seconds, "said to be exact, but it is not the minimum"
    return result, best, seconds, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--tool")
    parser.add_argument("--memory", type=float)
    parser.add_argument("--random", type=int, default=0, metavar="COUNT")
    parser.add_argument("--lp", metavar="OUT")
    arguments = parser.parse_args()
    if not arguments.random and not arguments.file or not (arguments.tool or arguments.lp):
        parser.error("needs a file or --random, and --tool or --lp")

    if arguments.file:
        problem = json.load(open(arguments.file))
        if arguments.lp:
            build(problem, arguments.memory).writeModel(arguments.lp)
        if arguments.tool:
            result, best, seconds, wrong = compare(arguments.tool, arguments.file, problem, arguments.memory)
            print(f"ours: {json.dumps(result)}\nHiGHS: {best:.9g} in {seconds:.3f} s")
            sys.exit(f"error: {wrong}" if wrong else 0)
        return

    wrongs = exact = solved = infeasible = 0
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        for seed in range(1, arguments.random + 1):
            text = subprocess.run([arguments.tool, "--random", str(seed)], check=True, capture_output=True, text=True).stdout
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()
            limits = [None]
            for limit in limits:
                result, best, _, wrong = compare(arguments.tool, file.name, json.loads(text), limit)
                if wrong:
                    print(f"seed {seed}, memory {limit}: {wrong}: {result}, HiGHS {best}")
                    wrongs += 1
                if result.get("error"):
                    infeasible += 1
                else:
                    solved += 1
                    exact += result["exact"]
                    if limit is None:
                        limits += [math.floor(result["memory"] * share) for share in (0.9, 0.6)]
    print(f"{solved} problems solved, {exact} of them exactly, {infeasible} infeasible for both, {wrongs} wrong")
    sys.exit(1 if wrongs else 0)


if __name__ == "__main__":
    main()

//===- Minimize.h - the least sum of cost tables ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Variables with a few choices each, and tables that say what choices cost
// together. minimize() finds one choice for each variable such that the sum of
// the tables is least, and says how far from the least it can be at most.
// It knows nothing of programs and shardings. No MLIR.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// Costs for each combination of some variables' choices; row-major, the last
/// variable fastest. Infinity: not allowed.
struct CostTable {
  std::vector<int> variables; ///< distinct, any number >= 0
  std::vector<double> costs;  ///< seconds, >= 0 or infinity; never NaN
  std::vector<double> memory; ///< bytes, same layout, >= 0 and finite; empty: none
  /// For messages: "plan line 12: at wte: shard vocab by tp"; empty: not a
  /// user's constraint. Tables with the same source are one constraint.
  std::string source;
};

struct ChoiceProblem {
  std::vector<int> sizes;         ///< number of choices of each variable, >= 1
  std::vector<std::string> names; ///< for messages, one per variable
  std::vector<CostTable> tables;
};

struct Minimum {
  std::vector<int> choice; ///< one per variable
  double cost = 0, memory = 0;
  double lowerBound = 0; ///< no allowed choice costs less; equal to cost when exact
  int64_t states = 0;    ///< table entries visited
  int width = 0;         ///< most variables in one joined table, minus 1
  double multiplier = 0; ///< seconds per byte, of the memory bound
  bool exact() const { return lowerBound == cost; }
};

struct MinimizeOptions {
  double memoryLimit = std::numeric_limits<double>::infinity(); ///< bytes
  int64_t maxTable = int64_t(1) << 26;                          ///< entries of one joined table
  /// Table entries that one depth-first search visits before it leaves a gap.
  int64_t maxSearch = int64_t(1) << 25;
};

/// The same problem gives the same result every time: the order of variables depends only on sizes
/// and on which tables share which variables, and ties go to the smallest choice. Where no memory
/// limit and no joined table above maxTable came in, the result does not change when variables are
/// fixed to their choice in it (by a table over one variable that is infinite elsewhere).
///
/// Errors: infeasible (names a minimal set of sources that conflict; with a
/// memory limit, also the limit and the smallest need), or a malformed problem.
Result<Minimum> minimize(const ChoiceProblem &problem, const MinimizeOptions &options = {});

/// The problem as JSON, and back; `null` stands for infinity. For a problem to
/// be looked at, or solved by another solver (tests/oracles/solve_ilp.py).
///   {"sizes": [2, 3], "names": ["a", "b"], "tables":
///     [{"variables": [0, 1], "costs": [1, 2, null, 0, 4, 5], "memory": [], "source": ""}]}
std::string toJson(const ChoiceProblem &problem);
Result<ChoiceProblem> choiceProblemFromJson(std::string_view text);

} // namespace cleave

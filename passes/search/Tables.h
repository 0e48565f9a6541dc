//===- Tables.h - tables of a problem, in order of elimination --*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Minimize.h"

#include <limits>

namespace cleave::minimizer {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Fewer joined entries than this are visited without a second thought.
constexpr double easy = 1 << 20;

/// Values for each combination of choices of `variables`: row-major, the
/// variable that is eliminated first is last (and so fastest).
struct Table {
  std::vector<int> variables;
  std::vector<double> values;
};

/// A problem in the form in which all else here reads it: one table for each
/// set of variables, its variables by falling position in the order.
struct Folded {
  std::vector<int> sizes;
  std::vector<int> order;    ///< variables, first eliminated first
  std::vector<int> position; ///< of each variable in `order`
  std::vector<CostTable> tables;
};

/// An order of elimination from the tables' variables and the sizes alone; tables over one variable
/// do not matter. Of two greedy orders (fewest new pairs first; smallest joined
/// table first) the one that visits fewer entries.
std::vector<int> eliminationOrder(const std::vector<int> &sizes,
                                  const std::vector<CostTable> &tables);

Folded fold(const ChoiceProblem &problem);

/// What is minimised: costWeight * cost + multiplier * memory; infinite where the cost is.
struct Objective {
  double costWeight = 1;
  double multiplier = 0;

  double of(const CostTable &table, size_t entry) const {
    const double cost = table.costs[entry];
    if (cost == infinity)
      return infinity;
    return costWeight * cost + (table.memory.empty() ? 0 : multiplier * table.memory[entry]);
  }
};

/// For each variable the choices that are left, rising.
using Domains = std::vector<std::vector<int>>;

/// Those that no table over one variable forbids.
Domains allowedChoices(const Folded &folded);

std::vector<int> sizesOf(const Domains &domains);

/// The entries of a table over variables of `sizes` for the choices that are left.
Table keep(const Table &table, const std::vector<int> &sizes, const Domains &domains);

/// A table's objective for the choices that are left; that of each table.
Table keep(const CostTable &table, const std::vector<int> &sizes, const Objective &objective,
           const Domains &domains);
std::vector<Table> keep(const Folded &folded, const Objective &objective, const Domains &domains);

/// The place of a choice (of all variables) in a table.
size_t entryOf(const std::vector<int> &variables, const std::vector<int> &sizes,
               const std::vector<int> &choice);

} // namespace cleave::minimizer

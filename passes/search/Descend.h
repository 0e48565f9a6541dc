//===- Descend.h - improving a choice step by step --------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Tables.h"

namespace cleave::minimizer {

class Descent {
public:
  /// Counts the table entries that it looks at in `visited`.
  Descent(const Folded &folded, const Domains &allowed, int64_t &visited);

  /// Moves variables one by one, with `blocks` also all variables of a table at once, to
  /// their best choice given the others, until nothing lowers the objective.
  /// Memory stays within the limit if it was; else it falls or stays.
  void run(std::vector<int> &choice, const Objective &objective, double memoryLimit, bool blocks);

  /// Moves each variable together with all that share a table with it to their best choices
  /// given the others, by elimination (where it is easy). True if that lowered the objective.
  bool moveStars(std::vector<int> &choice, const Objective &objective);

  double value(const std::vector<int> &choice, const Objective &objective) const;
  double memory(const std::vector<int> &choice) const;

private:
  bool improve(const std::vector<int> &block, std::vector<int> &choice, const Objective &objective,
               double &memoryNow, double memoryLimit);

  const Folded &folded;
  const Domains &allowed;
  std::vector<std::vector<int>> tablesOf; ///< of each variable
  int64_t &visited;
};

} // namespace cleave::minimizer

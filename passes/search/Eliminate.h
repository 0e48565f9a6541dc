//===- Eliminate.h - variable elimination over cost tables ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Bucket elimination (Dechter 1999). A table lies in the bucket of that one of
// its variables which comes first in the order. Bucket by bucket, the tables
// of a bucket are added up and the least over its variable is taken, for each
// choice of the other variables: a new table, in a later bucket. Backwards,
// each variable takes its smallest choice that attains the least.
//
// Where the joined table would be too large, the bucket is divided and the
// least taken of each part (mini-buckets, Dechter and Rish 2003): the result is
// a lower bound then, and the choice only a good one.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Tables.h"

#include <functional>

namespace cleave::minimizer {

class Elimination {
public:
  /// `sizes` are those of the tables, whose variables are in the form of Tables.h.
  Elimination(const Folded &folded, std::vector<int> sizes, std::vector<Table> tables);

  /// Entries of the joined tables if no bucket is divided: of all, and the most of one.
  struct Work {
    double total = 0, largest = 0;
  };
  static Work work(const Folded &folded, const std::vector<int> &sizes);

  void run(int64_t maxTable);

  double bound() const { return least; } ///< the minimum, if nothing was divided
  bool divided() const { return isDivided; }
  int64_t states() const { return visited; }
  int width() const { return mostVariables - 1; }

  /// Needs a finite bound. What it says is allowed if nothing was divided.
  std::vector<int> choice() const;

  /// The bucket's tables for each choice of its variable, given those of later variables.
  void bucketValues(int variable, const std::vector<int> &choice,
                    std::vector<double> &values) const;
  /// What the bucket told later ones, given these variables' choices.
  double told(int variable, const std::vector<int> &choice) const;

private:
  struct Bucket {
    std::vector<int> tables;   ///< in the order in which they are added up
    std::vector<int> messages; ///< what came out of it
  };
  std::vector<int> divide(const std::vector<int> &tables, int variable, int64_t maxTable,
                          std::vector<std::vector<int>> &parts) const;
  void join(int variable, const std::vector<int> &part);

  const Folded &folded;
  std::vector<int> sizes;
  std::vector<Table> tables;
  std::vector<Bucket> buckets;
  double least = 0;
  bool isDivided = false;
  int64_t visited = 0;
  int mostVariables = 1;
};

/// Depth first over the variables, last eliminated first, leaving out what
/// `objective` (an elimination that ran, perhaps divided) shows to reach `cutoff`
/// and `memory` (if any; the same sizes) to exceed `memoryLimit`. `leaf` gets each complete
/// choice that is left and returns the new cutoff. True if it came to its
/// end before `visited`, which counts table entries, reached `most`.
bool searchBelow(const Folded &folded, const Elimination &objective, double cutoff,
                 const Elimination *memory, double memoryLimit, int64_t &visited, int64_t most,
                 const std::function<double(const std::vector<int> &)> &leaf);

} // namespace cleave::minimizer

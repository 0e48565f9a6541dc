//===- Tighten.h - shifting costs between tables, for bounds ----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The sum of each table's least value is a lower bound. Moving costs from one
// table to another through a variable that both have keeps the sum of all tables the same for
// every choice, and can raise that bound. Sweeps over the variables do that as sequential
// reweighted message passing does (SRMP, Kolmogorov 2015; TRW-S where tables have two
// variables). A choice whose own bound is above the cost of a known solution
// is in no solution that is as good: it is dropped. What is left is often so small that
// elimination, hopeless before, is quick.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Tables.h"

namespace cleave::minimizer {

class Tightening {
public:
  /// The tables of a problem of which only `domains` are left.
  Tightening(const Folded &folded, Domains domains, std::vector<Table> tables);

  /// One sweep over all variables in one direction of the order, dropping
  /// choices whose bound is above `cutoff`.
  void sweep(bool forwards, double cutoff);
  double bound() const { return total; }
  /// Some variable has no choice left: no solution is at or below the cutoff.
  bool empty() const { return isEmpty; }

  /// Forgets what was dropped. The choices that are left:
  const Domains &compact();
  /// Entries of the tables, and of choices.
  int64_t entries() const;
  int64_t left() const;

  /// A good choice: each variable in turn takes what looks best to its tables
  /// given those before it. All of it among what is left; it may be not allowed.
  std::vector<int> guess() const;

  /// The tables as they are now (after compact()): the same sum, other summands.
  std::vector<Table> tablesNow() const;
  int64_t states() const { return visited; }

private:
  struct Place {
    int table, dim;
    bool earlier, later; ///< the table has a variable before, behind this one
  };
  struct Shape {
    int64_t outer, count, inner;
  };
  Shape shapeAround(const Place &place, int variable) const;

  const Folded &folded;
  Domains domains;
  std::vector<int> sizes;
  std::vector<Table> tables; ///< over two variables or more
  std::vector<std::vector<double>> own;
  std::vector<std::vector<Place>> places; ///< of each variable
  std::vector<double> leastOwn, leastTable;
  double constant = 0, total = 0;
  bool isEmpty = false;
  int64_t visited = 0;
};

} // namespace cleave::minimizer

//===- Routes.h - shardings of a type, and what lies between them -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// For one type of tensors: the shardings that values may have (homes), and the cheapest price from
// any sharding to any. The cheapest way goes through other homes where that costs less (Floyd's
// algorithm), so price(a, c) <= price(a, b) + price(b, c).
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Prices.h"

namespace cleave {

/// How atoms are put on the dims of a type, or on the factors of an op: each on one or on none;
/// of several on one place, those that the plan's rules mention are major, in the rules' order,
/// then the others in the mesh's.
struct AtomOrder {
  explicit AtomOrder(const ShardingContext &context);
  void sort(llvm::SmallVectorImpl<int> &atoms) const;
  std::vector<int> rank; ///< of each atom
};

class Routes {
public:
  Routes(const ShardingContext &context, NamedTensorType type, Prices &prices,
         std::vector<Sharding> homes);

  /// A number for a sharding, the same for equal ones; homes have the first.
  int number(const Sharding &sharding);
  int numHomes() const { return homes; }
  /// Seconds from one to another; infinite where that is never allowed.
  double price(int from, int to);
  const Sharding &sharding(int number) const { return known[number]; }

private:
  double direct(const Sharding &from, const Sharding &to);
  /// To each home.
  const std::vector<double> &row(int from);

  const ShardingContext &context;
  NamedTensorType type;
  Prices &prices;
  int homes;
  std::vector<Sharding> known;
  std::map<std::vector<int>, int> numbers;
  std::vector<std::vector<double>> rows;           ///< by `from`; empty: not yet
  std::map<std::pair<int, int>, double> elsewhere; ///< to what is no home
};

/// A sharding as a key of a map.
std::vector<int> keyOf(const Sharding &sharding);

} // namespace cleave

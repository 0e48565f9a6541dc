//===- Rule.h - how an op may be split --------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// An op's factors are its independent loop indices. Each dim of an operand or
// result runs along one factor. Splitting a factor over mesh axes splits every
// dim that runs along it; splitting a summed factor leaves the result unreduced.
//
//   contract [b, s, k] x [k, n] -> [b, s, n]
//   factors  b, s, n: parallel   k: sum
//   operands [b s k] [k n]  results [b s n]   sum passes: {0} or {1}
//
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

enum class FactorKind {
  Parallel, ///< may be split freely
  Sum,      ///< summed: split, a result without a dim along it is unreduced (sum)
  Max,      ///< the same (max)
  Min,      ///< the same (min)
  Partial,  ///< split only after the op's expansion into primitive ops
  Blocked,  ///< may not be split: the op needs the whole dim
};

const char *toString(FactorKind kind);

struct Factor {
  std::string name;
  int64_t size = 1;
  FactorKind kind = FactorKind::Parallel;
  /// The op needs to know where its shard begins: it takes an offset operand,
  /// one for each such factor, in factor order.
  bool needsOffset = false;
  /// Only elements that ids point at are read: never the padding.
  bool lookedUp = false;
};

/// What an op leaves in the padding of an uneven dim of its result.
enum class PaddingFlow {
  Anything, ///< it is not known
  Same,     ///< what the operand holds there
  Sum,      ///< zeros where all operands hold zeros
  Product,  ///< zeros where all operands that have the dim hold zeros
};

struct ShardingRule {
  std::vector<Factor> factors;
  /// For each operand (result), for each dim, its factor. Operands that are no
  /// tensors have no dims.
  std::vector<std::vector<int>> operands, results;
  /// Sets of operands through which an unreduced sum passes: all of the set are
  /// unreduced over the same axes, and no other operand is.
  std::vector<std::vector<int>> sumPasses;
  /// The same for max and min (a monotonically rising op).
  std::vector<std::vector<int>> maxPasses;

  /// What becomes of padding; what a reduction must find in it follows from the
  /// factor's kind (0, -inf, inf).
  PaddingFlow padding = PaddingFlow::Anything;

  /// The result has no dim along this factor and is left unreduced when it is split.
  bool leavesUnreduced(int factor, size_t result) const;
  /// Position of the factor of this name, or -1.
  int indexOf(const std::string &name) const;
  /// Finds or adds a factor.
  int factor(const std::string &name, int64_t size, FactorKind kind = FactorKind::Parallel,
             bool needsOffset = false);

  /// "b=8, k=64 sum | [b, k] x [k, n] -> [b, n] | sum passes {0}, {1}"
  std::string toString() const;
};

} // namespace cleave

//===- Pairs.h - which of two plans is faster, from pairs -------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "Print.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cleave::tool {

/// What pairs of times say, each of one step of two plans that ran one behind the other, so that
/// what slows the machine for a while slows both. Nothing is assumed of how the times spread:
/// - p: of the two-sided sign test (Dixon and Mood 1946), the chance of so uneven a count if both
///   were as fast; equal times do not count;
/// - interval: of the median of the ratios, with at least 95 %, from its order statistics: the
///   ratios that the same test does not reject.
struct PairVerdict {
  int64_t faster = 0, slower = 0, equal = 0; ///< pairs
  double ratio = 1;                          ///< the median of time over the other's time
  double p = 1;
  std::optional<std::pair<double, double>> interval; ///< from `fewest` pairs on

  static constexpr int64_t fewest = 6; ///< fewer can't reject anything at 5 %
  int64_t pairs() const { return faster + slower + equal; }
  bool settled() const { return p <= 0.05; }
  /// "auto 0.97 of megatron, faster in 19 of 20 pairs (...)"
  std::string text(const std::string &plan, const std::string &other) const;
  Json json(const std::string &other) const;
};

/// Seconds of the same steps, as many of both, at least one.
PairVerdict judgePairs(const std::vector<double> &seconds, const std::vector<double> &others);

} // namespace cleave::tool

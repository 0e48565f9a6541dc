//===- Pairs.cpp - which of two plans is faster, from pairs ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Pairs.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace cleave::tool {

/// The chance that k of n throws of a coin are heads.
static double heads(int64_t k, int64_t n) {
  auto all = static_cast<double>(n), some = static_cast<double>(k);
  return std::exp(std::lgamma(all + 1) - std::lgamma(some + 1) - std::lgamma(all - some + 1) -
                  all * std::log(2.0));
}

PairVerdict judgePairs(const std::vector<double> &seconds, const std::vector<double> &others) {
  PairVerdict v;
  std::vector<double> ratios;
  for (size_t i = 0; i < seconds.size(); ++i) {
    (seconds[i] < others[i] ? v.faster : seconds[i] > others[i] ? v.slower : v.equal) += 1;
    ratios.push_back(seconds[i] == others[i] ? 1 : seconds[i] / others[i]);
  }
  std::sort(ratios.begin(), ratios.end());
  size_t half = ratios.size() / 2;
  v.ratio = ratios.size() % 2 ? ratios[half] : (ratios[half - 1] + ratios[half]) / 2;
  double tail = 0;
  for (int64_t k = 0; k <= std::min(v.faster, v.slower); ++k)
    tail += heads(k, v.faster + v.slower);
  v.p = std::min(1.0, 2 * tail);
  if (v.pairs() >= PairVerdict::fewest) {
    int64_t left = 0; // so many ratios may lie outside on each side
    for (double beyond = heads(0, v.pairs()); 2 * beyond <= 0.05; ++left)
      beyond += heads(left + 1, v.pairs());
    v.interval = {ratios[static_cast<size_t>(left - 1)],
                  ratios[ratios.size() - static_cast<size_t>(left)]};
  }
  return v;
}

std::string PairVerdict::text(const std::string &plan, const std::string &other) const {
  std::string count = fmt::format("{} {:.2f} of {}, faster in {} of {}", plan, ratio, other,
                                  countText(faster), countText(pairs(), "pair"));
  if (!interval)
    return fmt::format("{}: {} is too few to settle which is faster, {} at least can", count,
                       countText(pairs()), fewest);
  return fmt::format("{}{} (sign test: p = {:.2g}; median between {:.3f} and {:.3f} with 95 %)",
                     count, settled() ? "" : ": the pairs do not settle which is faster", p,
                     interval->first, interval->second);
}

Json PairVerdict::json(const std::string &other) const {
  return {{"against", other},
          {"ratio", ratio},
          {"faster", faster},
          {"slower", slower},
          {"equal", equal},
          {"pairs", pairs()},
          {"test", "sign"},
          {"p", p},
          {"interval_95", interval ? Json({interval->first, interval->second}) : Json()},
          {"settled", interval.has_value() && settled()}};
}

} // namespace cleave::tool

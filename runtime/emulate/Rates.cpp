//===- Rates.cpp - how long a device takes for its work -------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Rates.h"

#include <algorithm>
#include <cmath>

namespace cleave {

TimeGrid::TimeGrid(std::vector<std::vector<double>> sizes, std::vector<double> seconds)
    : sizes(std::move(sizes)), seconds(std::move(seconds)) {
  size_t stride = 1;
  for (size_t d = this->sizes.size(); d-- > 0; stride *= this->sizes[d].size())
    for (size_t i = 0; i < this->seconds.size(); ++i)
      if (i / stride % this->sizes[d].size() > 0)
        this->seconds[i] = std::max(this->seconds[i], this->seconds[i - stride]);
}

double TimeGrid::at(const std::array<double, 3> &point) const {
  // Of each dim: the point below, how far it is to the next, and what lies beyond the last.
  std::array<size_t, 3> below = {};
  std::array<double, 3> part = {};
  double beyond = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const std::vector<double> &of = sizes[d];
    double x = std::max(point[d], of.front());
    if (x >= of.back()) {
      beyond *= x / of.back();
      below[d] = of.size() - 1;
      continue;
    }
    below[d] = static_cast<size_t>(std::upper_bound(of.begin(), of.end(), x) - of.begin()) - 1;
    part[d] = std::log(x / of[below[d]]) / std::log(of[below[d] + 1] / of[below[d]]);
  }
  double sum = 0;
  for (unsigned corner = 0; corner < 1u << sizes.size(); ++corner) {
    double weight = 1;
    size_t index = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      bool upper = corner >> d & 1u;
      weight *= upper ? part[d] : 1 - part[d];
      index = index * sizes[d].size() + std::min(below[d] + upper, sizes[d].size() - 1);
    }
    if (weight > 0)
      sum += weight * std::log(seconds[index]);
  }
  return beyond * std::exp(sum);
}

double Rates::product(const ProductShape &s) const {
  if (s.batch <= 0 || s.m <= 0 || s.n <= 0)
    return 0;
  const Products *best = nullptr;
  auto distance = [&](const Products &p) {
    double size = std::abs(std::log2(double(p.elementBytes) / double(s.elementBytes)));
    return 3 * size + (p.transA != s.transA) + (p.transB != s.transB);
  };
  for (const Products &p : products)
    if (!best || distance(p) < distance(*best))
      best = &p;
  if (!best)
    return launch + std::max(s.flops() / flops, s.bytes() / memoryBandwidth);
  double one = best->grid.at({double(s.m), double(s.n), double(std::max<int64_t>(1, s.k))});
  // Wider elements than were measured: so much less in a vector register.
  double wider = std::max(1.0, double(s.elementBytes) / double(best->elementBytes));
  return launch + double(s.batch) * one * wider;
}

double Rates::attentionOf(const AttentionShape &s) const {
  if (s.heads <= 0 || s.queries <= 0 || s.keys <= 0)
    return 0;
  for (const Attention &a : attention)
    if (a.causal == s.causal && a.gradient == s.gradient)
      return launch + double(s.heads) * a.grid.at({std::sqrt(double(s.queries) * double(s.keys)),
                                                   double(std::max<int64_t>(1, s.depth)), 0});
  return launch + s.flops() / flops;
}

double Rates::moved(double bytes, double distance) const {
  if (memory.empty())
    return bytes / memoryBandwidth;
  double at = std::clamp(distance, memory.dims()[0].front(), memory.dims()[0].back());
  return bytes / at * memory.at({at, 0, 0});
}

double Rates::pass(const PassShape &s, double distance) const {
  double arithmetic = passFlops > 0 ? s.flops / passFlops : s.flops / flops;
  for (size_t f = 0; f < passFunctions.size(); ++f)
    arithmetic += double(s.functions[f]) / (passFunctions[f] > 0 ? passFunctions[f] : flops / 10);
  return launch + std::max(arithmetic, moved(s.bytes, std::max(distance, s.bytes)));
}

} // namespace cleave

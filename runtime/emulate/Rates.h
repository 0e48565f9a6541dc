//===- Rates.h - how long a device takes for its work -----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The seconds of one piece of work, from what a profile says of a device (Cluster.h). A plain
// profile gives the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): the longer of the
// arithmetic and the bytes. A measured one has grids: the rate that was attained at each of some
// sizes.
//
// Between the sizes of a grid, the logarithm of the time is interpolated linearly over the
// logarithms of the sizes. Beyond the largest, the time grows in proportion to the size; below the
// smallest, it is that of the smallest. A grid's time never falls as a size grows: where measured
// rates would have it, the longer time of the smaller size holds.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Work.h"

#include <array>
#include <string>
#include <vector>

namespace cleave {

/// Times over one to three sizes, as above.
class TimeGrid {
public:
  TimeGrid() = default;
  /// `sizes`: of each dim, positive and increasing; `seconds`: positive, the last dim fastest.
  TimeGrid(std::vector<std::vector<double>> sizes, std::vector<double> seconds);

  bool empty() const { return seconds.empty(); }
  const std::vector<std::vector<double>> &dims() const { return sizes; }
  /// `at`: a size for each dim.
  double at(const std::array<double, 3> &point) const;

private:
  std::vector<std::vector<double>> sizes;
  std::vector<double> seconds;
};

/// One device, at `threads` threads of a rank while `ranks` ranks of its machine compute.
struct Rates {
  int threads = 1, ranks = 1;
  /// Arithmetic operations and bytes of memory a second, for what there is no grid for.
  double flops = 0, memoryBandwidth = 0;
  /// Of each kernel, before it does anything.
  double launch = 0;

  struct Products {
    bool transA = false, transB = false;
    int64_t elementBytes = 4;
    TimeGrid grid; ///< of one product: m, n, k
  };
  std::vector<Products> products;
  struct Attention {
    bool causal = false, gradient = false;
    TimeGrid grid; ///< of one head: sqrt(queries * keys), depth
  };
  std::vector<Attention> attention;
  /// Passes over memory: of a pass over so many bytes, again and again.
  TimeGrid memory;
  /// In passes over memory, a second; 0: as `flops`, 10 to a function.
  double passFlops = 0;
  std::array<double, scalarFunctionNames.size()> passFunctions = {}; ///< by ScalarFunction

  /// In seconds; none is negative, and none falls as a size grows.
  double product(const ProductShape &shape) const;
  double attentionOf(const AttentionShape &shape) const;
  /// Products and attention whose operands were touched just before; of passes, `distance` bytes of
  /// others have been touched in between, or only the pass's own.
  double pass(const PassShape &shape, double distance = 0) const;
  /// Reading or writing bytes that were last touched `distance` bytes ago.
  double moved(double bytes, double distance) const;
};

} // namespace cleave

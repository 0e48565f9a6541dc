//===- Difference.h - when two tensors are equal ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// float64: the largest error is at most 1e-11 of the tensor's largest
// magnitude. float32: the error against float64 is at most 4 times that of the
// one-rank float32 result; floor: 8 units in the last place of the largest
// magnitude. All else: the same.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Tensor.h"

#include <string>
#include <vector>

namespace cleave::tool {

struct Difference {
  std::string what; ///< "result", "gradient", "weights", "loss", ...
  std::string name;
  double error = 0;   ///< largest
  double allowed = 0; ///< at that element
  double magnitude = 0;
  int64_t index = -1;                  ///< of the worst element, linear
  int64_t firstBad = -1, lastBad = -1; ///< elements beyond their bound, linear
  bool equal = true;
  std::string place; ///< of the worst element: "[2, 0, 1]"
  std::vector<int64_t> shape;
};

/// The index along the first dim of an element; -1 if there is no such dim.
int64_t leadingIndex(const std::vector<int64_t> &shape, int64_t index);

/// What two sharded values are measured with.
struct Tolerance {
  const HostTensor *exact = nullptr; ///< float32: the one-rank result in float64
  /// The least magnitude that counts: a value that is zero in mathematics is
  /// rounding alone, and is measured against this.
  double floor = 0;
  /// Relative to the magnitude: the unit of the narrowest type that the program rounds to.
  /// The last bits of a sum may decide how it rounds.
  double rounding = 0;
  /// Further error allowed for each element; empty: none.
  const std::vector<double> *slack = nullptr;
};

/// The largest relative error of rounding to a type that is narrower than float32; 0 for others.
constexpr double unitOf(DType type) {
  return type == DType::BF16 ? 0x1p-8 : type == DType::F16 ? 0x1p-11 : 0;
}

double largestMagnitude(const HostTensor &tensor);

Difference compareTensors(std::string what, std::string name, const HostTensor &oneRank,
                          const HostTensor &sharded, const Tolerance &tolerance = {});

} // namespace cleave::tool

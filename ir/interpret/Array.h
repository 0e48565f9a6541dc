//===- Array.h - the interpreter's arrays -----------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Plain row-major arrays and walks over them. No MLIR.
//
//===----------------------------------------------------------------------===//
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

/// A dense row-major array. Every float type is held as double; i1 (0 or 1),
/// i32, i64 and index as int64.
struct Array {
  std::vector<int64_t> shape;
  bool integer = false;
  std::vector<double> reals; ///< the elements, unless `integer`
  std::vector<int64_t> ints; ///< the elements, if `integer`

  static Array ofReals(std::vector<int64_t> shape, std::vector<double> values) {
    return {std::move(shape), false, std::move(values), {}};
  }
  static Array ofInts(std::vector<int64_t> shape, std::vector<int64_t> values) {
    return {std::move(shape), true, {}, std::move(values)};
  }
  static Array zeros(std::vector<int64_t> shape, bool integer);

  int64_t size() const { return static_cast<int64_t>(integer ? ints.size() : reals.size()); }
  /// Any element as a number.
  double number(int64_t i) const { return integer ? static_cast<double>(ints[i]) : reals[i]; }
};

/// One array for each rank of the mesh.
using PerRankArrays = std::vector<Array>;

/// An array with the names of its dims; does not own it.
struct NamedArray {
  std::vector<std::string> names;
  const Array *array = nullptr;

  int64_t sizeOf(const std::string &name) const;
  bool has(const std::string &name) const;
  /// For each of the names this array's stride along it, 0 where it has no such dim.
  std::vector<int64_t> stridesFor(const std::vector<std::string> &names) const;
};

std::vector<int64_t> rowMajorStrides(const std::vector<int64_t> &shape);
int64_t elementsOf(const std::vector<int64_t> &shape);

/// Calls f with the N linear offsets of each point of a box, row-major.
/// strides[n][d]: how far operand n moves along dim d.
template <size_t N, typename F>
void walk(const std::vector<int64_t> &sizes, const std::array<std::vector<int64_t>, N> &strides,
          F &&f) {
  if (elementsOf(sizes) == 0)
    return;
  std::array<int64_t, N> outer{};
  if (sizes.empty()) {
    f(outer);
    return;
  }
  size_t last = sizes.size() - 1;
  std::vector<int64_t> index(sizes.size(), 0);
  while (true) {
    std::array<int64_t, N> at = outer;
    for (int64_t k = 0; k < sizes[last]; ++k) {
      f(at);
      for (size_t n = 0; n < N; ++n)
        at[n] += strides[n][last];
    }
    size_t d = last;
    while (d > 0) {
      --d;
      ++index[d];
      for (size_t n = 0; n < N; ++n)
        outer[n] += strides[n][d];
      if (index[d] < sizes[d])
        break;
      for (size_t n = 0; n < N; ++n)
        outer[n] -= strides[n][d] * sizes[d];
      index[d] = 0;
      if (d == 0)
        return;
    }
    if (last == 0)
      return;
  }
}

} // namespace cleave

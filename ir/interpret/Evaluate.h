//===- Evaluate.h - one op on one rank --------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/interpret/Interpreter.h"

#include <cmath>

namespace cleave {

/// Runs an op without regions and without communication. `in`: its operands on
/// one rank (index values are integer scalars). `out`: its results. Gives an empty
/// text, or why the op cannot be run.
std::string evaluate(mlir::Operation *op, llvm::ArrayRef<const Array *> in,
                     std::vector<Array> &out);

/// The larger (smaller) of two, NaN if either is.
inline double maximum(double a, double b) { return std::isnan(a) || a > b ? a : b; }
inline double minimum(double a, double b) { return std::isnan(a) || a < b ? a : b; }
inline int64_t maximum(int64_t a, int64_t b) { return std::max(a, b); }
inline int64_t minimum(int64_t a, int64_t b) { return std::min(a, b); }

template <typename T> T combine(Reduction reduction, T a, T b) {
  switch (reduction) {
  case Reduction::Sum:
    return a + b;
  case Reduction::Max:
    return maximum(a, b);
  case Reduction::Min:
    return minimum(a, b);
  }
  return a;
}

} // namespace cleave

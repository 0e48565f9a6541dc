//===- PackedWeights.h - weights packed once for many runs ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
// A product reads its B in packed form. Where B is a weight that no program changes,
// a session packs it once, when it first runs after the weight was set, and keeps
// the copy. It takes about the memory of the weight once more.
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <compare>
#include <functional>
#include <string>
#include <vector>

namespace cleave {

/// A part of a param as products read it. Products with the same share one copy.
struct PackedWeight {
  std::string param;
  int64_t offset = 0; ///< bytes
  DType dtype = DType::F32;
  bool transB = false;
  int64_t ldb = 0, n = 0, k = 0;
  auto operator<=>(const PackedWeight &) const = default;
};

/// What is decided for one product of a program.
struct PackDecision {
  int32_t step = 0;
  PackedWeight weight;
  int64_t bytes = 0;  ///< of the copy
  std::string reason; ///< why B is packed in each run; empty: it is packed once
};

/// For all products of a program. `packedBytes` is the device's (see Device).
std::vector<PackDecision>
decidePacking(const Executable &executable, const Program &program,
              const std::function<int64_t(const GemmStep &)> &packedBytes);

} // namespace cleave

//===- ValueShardings.h - where the values of a program lie -----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mlir {
class ModuleOp;
}

namespace cleave {

/// How a value of a source line is split.
struct ValueSharding {
  std::string source; ///< file:line:col of the op that makes it, or of the param
  std::string phase;  ///< "forward", "backward", "optimizer"
  std::string name;   ///< of a param or an input; else empty
  std::string layout; ///< "[batch by dp, seq, width]", "[batch, width], partial over tp"
  int64_t times = 1;  ///< turns of the repeats that it stands in
};

/// Of params, inputs and results of ops that have dims, in program order, those that look alike
/// once. Of a module with shardings, before it is partitioned.
std::vector<ValueSharding> valueShardings(mlir::ModuleOp module);

} // namespace cleave

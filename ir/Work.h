//===- Work.h - how much an op computes -------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"

namespace cleave {

struct Work {
  double flops = 0; ///< a product and its sum are 2; another arithmetic op 1, a function 10
  double bytes = 0; ///< of operands and results, each once
};

/// Of an op that runs on these many elements of each of its rule's factors. Bytes are those that
/// pass through memory when neighbours are fused: of an elementwise op none, but for operands that
/// no elementwise op makes and results that others than elementwise ops read.
Work workOf(mlir::Operation *op, const ShardingRule &rule, llvm::ArrayRef<int64_t> extents);

} // namespace cleave

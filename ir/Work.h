//===- Work.h - how much an op computes -------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "runtime/core/Work.h"

#include <variant>

namespace cleave {

using OpWork = std::variant<PassShape, ProductShape, AttentionShape>;

/// Of an op that runs on these many elements of each of its rule's factors. A pass's bytes are
/// those that go through memory when neighbours are fused: of an elementwise op or a reduction
/// none, but for operands that neither such an op nor a product for it alone makes, each once in a
/// block and phase, and results that other ops read.
OpWork workOf(mlir::Operation *op, const ShardingRule &rule, llvm::ArrayRef<int64_t> extents);

} // namespace cleave

//===- Attention.h - attention's kernels ------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Kernels for a group that is one `cleave.attention` or `cleave.attention_grad`.
// Scores exist for a block of queries by a block of keys only, with the queries along the
// lanes; the forward kernel keeps each row's maximum and sum as it goes over the
// keys (online softmax, arXiv 1805.02867; blocks as in arXiv 2205.14135), the backward
// kernel computes the scores again.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "passes/lowering/Kernels.h"

#include "mlir/IR/BuiltinOps.h"

namespace cleave {

/// The attention op that is all of the group's content, or null.
mlir::Operation *attentionIn(FusedOp fused);

/// Adds a function with KernelStep's signature to `module`, whose context may be
/// another. Fills all but `info.symbol`. False: an error was emitted.
bool generateAttention(FusedOp fused, mlir::ModuleOp module, const KernelOptions &options,
                       llvm::StringRef symbol, KernelInfo &info);

} // namespace cleave

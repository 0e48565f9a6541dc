//===- Accumulate.h - micro-batches one after the other ---------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/IR/BuiltinOps.h"

#include <string>

namespace cleave {

/// The axis of the micro-batches, and the dim of the repeat that it becomes.
inline constexpr llvm::StringLiteral kAccumulate = "accumulate";

/// Cuts `dim` of every input that has it, in which it is the first, into `count`
/// micro-batches: adds the axis to the module's mesh and a rule to its plan. With 1
/// nothing changes. Fails unless `count` divides the rows that a rank has.
llvm::LogicalResult splitMicroBatches(mlir::ModuleOp module, int64_t count, llvm::StringRef dim);

/// Makes the axis a repeat, in the per-rank program.
llvm::LogicalResult repeatMicroBatches(mlir::ModuleOp module);

} // namespace cleave

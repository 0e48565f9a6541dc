//===- GroupLayers.h - layers in groups, for recompute every(k) -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace cleave {

/// Makes each outermost repeat of the function a repeat over groups of `size` layers around
/// one over the layers of a group. The outer one is marked so that differentiation saves what
/// enters a group and runs the group's forward pass again (Chen et al., arXiv 1604.06174,
/// section 3). Fails unless `size` divides the layers of every repeat.
llvm::LogicalResult groupLayers(mlir::func::FuncOp function, int64_t size);

} // namespace cleave

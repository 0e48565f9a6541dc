//===- HoistCasts.h - params are cast once for all layers -------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/IR/BuiltinOps.h"

namespace cleave {

/// Where repeats cast the slices of a param, each layer and pass its own, the whole param is
/// cast once, ahead of them. Takes the memory of the copy, and saves casting it again.
llvm::LogicalResult hoistParamCasts(mlir::ModuleOp module);

} // namespace cleave

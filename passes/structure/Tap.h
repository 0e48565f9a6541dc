//===- Tap.h - named values as further results ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <string>
#include <vector>

namespace cleave {

/// Gives the function a further result "tap:NAME" for each named value, in the
/// order asked. A value inside of a repeat comes stacked on the layer dim. A name
/// that no op's location carries is an error.
llvm::LogicalResult addTaps(mlir::func::FuncOp function, const std::vector<std::string> &names);

/// The names that ops of the function carry, in program order, each once.
std::vector<std::string> tapNames(mlir::func::FuncOp function);

} // namespace cleave

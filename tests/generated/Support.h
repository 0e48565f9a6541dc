//===- Support.h - running IR text in tests ---------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/interpret/Interpreter.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cleave::testing {

/// The context of all tests, with the dialects loaded.
mlir::MLIRContext &context();

/// Parses and verifies a module; a test failure and null when it does not.
mlir::OwningOpRef<mlir::ModuleOp> parse(const std::string &text);

/// Puts `T[..]` for `!cleave.tensor<f64 [..]>`, `I[..]` for i32, `B[..]` for i1, `L`
/// for i64 and `S` for f32, each with or without dims, so that tests fit lines.
std::string shortened(const std::string &text);

mlir::func::FuncOp function(mlir::ModuleOp module, const std::string &name);

/// Runs on one rank and gives the results' arrays; a test failure when it fails.
std::vector<Array> run(mlir::func::FuncOp f, const std::vector<Array> &args,
                       InterpretOptions options = {});

/// Distinct small numbers, some negative, none zero: 1, -2, 3, ... times `scale`,
/// shuffled by the seed.
Array numbers(std::vector<int64_t> shape, double scale, unsigned seed);

/// The text of the op.
std::string textOf(mlir::Operation *op);

} // namespace cleave::testing

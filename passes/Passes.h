//===- Passes.h - all passes ------------------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

#include <memory>

namespace cleave {

#define GEN_PASS_DECL
#include "passes/differentiate/Passes.h.inc"
#define GEN_PASS_DECL
#include "passes/sharding/Passes.h.inc"
#define GEN_PASS_DECL
#include "passes/structure/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/differentiate/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/sharding/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/structure/Passes.h.inc"

/// Registers every pass of the project, for tools that run them by name.
void registerCleavePasses();

} // namespace cleave

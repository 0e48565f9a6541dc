//===- EmitIR.h - the checked program to the cleave dialect -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Checked.h"
#include "runtime/core/Result.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"

namespace cleave {

struct EmitOptions {
  /// The entry functions to emit; empty: all of them.
  std::vector<std::string> functions;
  /// The plan whose mesh, rules and pins go into the module; empty: one rank.
  /// Its axes have sizes (CheckOptions::mesh).
  std::string plan;
  /// F64: every f32 becomes f64 (`--dtype f64`). Random numbers stay the same.
  DType dtype = DType::F32;
  /// Mixed precision, for the pass cleave-lower-precision; not with F64.
  std::optional<checked::Precision> precision;
  /// Dropout is active; otherwise its ops are left out.
  bool train = false;
};

/// Global shapes, one `func.func` per entry, everything inlined but `repeat`.
/// Arguments: the params that the function reads, in the order of the text; its
/// own arguments; then `seed` and `step` when it draws random numbers. The
/// module is verified. The context needs the cleave and func dialects.
Result<mlir::OwningOpRef<mlir::ModuleOp>>
emitIR(const CheckedProgram &program, const EmitOptions &options, mlir::MLIRContext &context);

} // namespace cleave

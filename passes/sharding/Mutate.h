//===- Mutate.h - faults put into a per-rank program ------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/IR/BuiltinOps.h"

namespace cleave {

/// Puts one fault into the partitioned module, for the tests of `cleave check`:
/// `text` is "KIND:N", N counting the collectives in walk order from 0.
///   drop    each rank goes on with what it has: no reduction; a gathered dim
///           holds the own shard and zeros
///   double  a reduction happens twice; what is gathered or exchanged is doubled
///   kind    a sum becomes a maximum, a maximum a sum; a gather or exchange is
///           replaced by a sum of the own shards
///   axis    another axis of the mesh, or none when there is no other
/// An N past the last collective is an error that says how many there are.
llvm::LogicalResult mutateCollective(mlir::ModuleOp module, llvm::StringRef text);

} // namespace cleave

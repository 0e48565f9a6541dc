//===- Interpreter.h - the dialect's reference interpreter ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Runs a function of the dialect, slowly and plainly, to say what it means. All
// ranks of the mesh go in lockstep: each value is one array for each rank.
//
// Two kinds of functions:
//  - global ones (before cleave-partition): one rank, shardings in types are
//    ignored, collectives are the identity;
//  - per-rank ones (after it; they carry `cleave.layouts`): types are local,
//    collectives move elements between the ranks' arrays.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "ir/interpret/Array.h"
#include "runtime/core/Result.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <functional>
#include <optional>

namespace cleave {

struct InterpretOptions {
  /// Whether types are local and each rank has arrays of its own. By default:
  /// whether the function has `cleave.layouts`.
  std::optional<bool> perRank;
  /// Rounds each op's results to the element type (f32, bf16, f16). Without it
  /// every float is a double.
  bool round = false;
  /// Composite ops by their definitions (true) or by their expansion (false).
  bool nativeComposites = true;
  /// Called after each op that has tensor results, in the order of execution,
  /// with the iterations of the repeats around it, outermost first. `results[i]`
  /// is result i on every rank.
  std::function<void(mlir::Operation *op, llvm::ArrayRef<PerRankArrays> results,
                     llvm::ArrayRef<int64_t> iterations)>
      trace;
};

/// Runs the function. `args[i]`: argument i on every rank (one array for a global
/// function), in the argument's shape. Gives the results in the same form.
/// The function must verify; what cannot be run is an error that names the op.
Result<std::vector<PerRankArrays>> interpret(mlir::func::FuncOp function,
                                             const std::vector<PerRankArrays> &args,
                                             const InterpretOptions &options = {});

/// The module's mesh; without one, a mesh of one rank.
MeshAttr meshOf(mlir::Operation *op);

//===----------------------------------------------------------------------===//
// Global arrays and their shards. Sharded types have global sizes; a dim of n
// elements over p ranks has blocks of ceil(n/p).
//===----------------------------------------------------------------------===//

/// What the padding of an uneven shard starts as.
enum class Padding {
  Zero,
  Poison, ///< NaN; an absurd id; true
};

/// Number of shards that the axes (array of AxisAttr) give.
int64_t shardCount(MeshAttr mesh, mlir::ArrayAttr axes);
/// Which of them the rank has: the axes' digits of its place, first axis major.
int64_t shardIndex(MeshAttr mesh, mlir::ArrayAttr axes, int64_t rank);
/// The ranks that differ from this one in the axes only, by their shard index.
std::vector<int64_t> rankGroup(MeshAttr mesh, mlir::ArrayAttr axes, int64_t rank);
/// One rank's shape of a value with this global type.
std::vector<int64_t> localShape(MeshAttr mesh, NamedTensorType type);

/// Cuts a global array into what each rank holds. Unreduced values are not cut:
/// the type must have no unreduced axes.
PerRankArrays shardArray(const Array &global, NamedTensorType type, MeshAttr mesh, Padding padding);
/// Joins the shards, without padding; combines what is unreduced. Ranks that hold
/// the same part must hold the same bits; the error names the first that do not.
Result<Array> assembleArray(const PerRankArrays &shards, NamedTensorType type, MeshAttr mesh);

/// The dims' sizes as a shape.
std::vector<int64_t> shapeOf(NamedTensorType type);

} // namespace cleave

//===- ParamFlow.h - which values stand for a param -------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A param's way through a function: its layers' slices and copies, its gradient, the values of
// its update, its optimizer's state. What says where a param lives (a plan's `zero`, `auto`)
// says it for all of them. Structure alone; nothing of shardings.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/sharding/Sharding.h"

#include "llvm/ADT/MapVector.h"

#include <optional>

namespace cleave {

struct ParamFlow {
  enum class Role {
    Param,        ///< the argument
    Slice,        ///< a view of it for layers or groups of layers
    State,        ///< an argument of the optimizer
    Update,       ///< computed by the optimizer, of the param's dims
    Renewed,      ///< an Update that replaces the argument
    Gradient,     ///< a gradient at the op that completes its sum
    KeptGradient, ///< gradients of layers, stacked or joined
  };
  struct Place {
    Role role;
    unsigned param; ///< into `params`
  };
  llvm::SmallVector<mlir::BlockArgument> params;
  /// Of each param, how many of its first dims are layers' (kStacked, or a repeat's dim): never
  /// split.
  llvm::SmallVector<int64_t> layerDims;
  /// In the order in which they are found; a value stands once.
  llvm::MapVector<mlir::Value, Place> places;
  /// Of each param: its gradient as a result "grad:PATH" of the function, or null.
  llvm::SmallVector<mlir::Value> gradientResults;
  /// Gradients that only a result needs: where no optimizer follows.
  llvm::DenseSet<mlir::Value> onlyResults;

  explicit ParamFlow(mlir::func::FuncOp function);

private:
  std::optional<unsigned> paramOf(mlir::Value v) const;
  void update(mlir::Value v, mlir::BlockArgument of, unsigned param);
  void gradient(mlir::Value v, unsigned param, bool onlyResult);
  void views(mlir::func::FuncOp function);
};

/// The optimizer's.
bool isUpdate(mlir::Operation *op);

/// A sharding of `whole`, for a value with some of its dims (a layer's slice has no layer dim);
/// other dims of the value are not split.
Sharding shardingOfPart(const Sharding &whole, NamedTensorType wholeType, NamedTensorType part);

} // namespace cleave

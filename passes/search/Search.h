//===- Search.h - the cheapest sharding of every value ----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// For a plan that says `auto`: what is cheapest by the sum of compute, collectives and reshards,
// over all choices that the ops' declarations allow.
//
// Variables, each with the shardings that it may have (each axis on one dim or on none):
//   dims    of all values with the same dims (and sizes; dims of layers don't count): where they
//           live. A gradient has its value's dims, and so lives where its value does.
//   param   where a param lives, and how its optimizer's state, gradient or the param itself is
//           split further (as `zero 2` and `zero 3` do)
//   pin     of a value that the plan pins over some axes, over the others
//   op      which factor each axis splits: of ops that sum or whose result lacks some factors.
//           Other ops go as their result does.
//   pending of a tree of additions of partial sums: over which axes the sum is reduced at its end
//           instead of at its leaves
// Costs: an op's work on its share; the way of each operand from where it lives to where the op
// needs it, and of each result from where it is made to where it lives (Routes.h). A layer counts
// as often as it runs. Memory: params, optimizer state, and what layers save for the backward pass.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Report.h"
#include "passes/sharding/Zero.h"

#include <memory>

namespace cleave {

/// How many atoms split each factor of an op, by operation.
using OpFactors = llvm::DenseMap<mlir::Operation *, llvm::SmallVector<llvm::SmallVector<int, 2>>>;

struct SearchResult {
  ShardingMap lives;                     ///< of every tensor
  OpFactors factors;                     ///< of every op with a rule
  llvm::SmallVector<ParamShards> shards; ///< of each param of the flow
  SearchReport report;
};

/// Of a function whose module has kAutoAttr, before collectives are inserted. Errors are reported
/// at the plan's place.
llvm::FailureOr<SearchResult> searchShardings(const ShardingContext &context,
                                              mlir::func::FuncOp function, const ParamFlow &flow);

/// Where a search has put params, as pins: programs of one executable share their params.
using ParamPins = llvm::StringMap<llvm::SmallVector<mlir::NamedAttribute>>;
/// Of functions with the attributes of `cleave-assign-shardings`.
ParamPins pinsOfParams(mlir::ModuleOp module, const ShardingContext &context);
void pinParams(mlir::ModuleOp module, const ParamPins &pins);

} // namespace cleave

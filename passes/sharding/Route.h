//===- Route.h - by which collectives a value moves --------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The way from one sharding of a value to another, as a list of collectives; decided here and
// emitted by `reshard`. The search prices the same lists, so what it predicts is what is done.
//
// The value's current sharding is walked towards the wanted one; each step is one collective, and
// the step's `after` describes the value behind it:
//   1. unreduced atoms: reduce-scatter where the target has them on a dim, as the
//      next minor ones, else all-reduce; with `zero 1` first over micro-batches, so
//      that gradients are added up whole and scattered once;
//   2. atoms that are used nowhere yet: slice, which sends nothing and makes
//      what follows smaller;
//   3. atoms that move from one dim to another: all-to-all;
//   4. atoms that must go: all-gather; 5. what is still missing: slice.
// Where that is more than one collective over one axis, a cheaper way is looked for (Dijkstra's
// algorithm over the shardings that single steps lead to), and taken when there is one.
//
// Blocks are ceil(n/p). When the blocks of a coarser split are not unions of the
// finer ones (5 rows over 2x2: blocks of 2, but of 3 over the first 2), the dim is
// gathered whole and sliced again.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/sharding/Sharding.h"

namespace cleave {

struct RouteStep {
  enum class Kind { AllReduce, ReduceScatter, AllGather, AllToAll, Slice } kind;
  unsigned dim = 0; ///< ReduceScatter, Slice: split; AllGather: made whole; AllToAll: made whole
  unsigned to = 0;  ///< AllToAll: split
  llvm::SmallVector<int, 2> atoms;
  Sharding after;
  /// Elements of the collective's whole tensor: of a rank before an all-reduce, a reduce-scatter
  /// or an all-to-all, behind an all-gather; padding counts.
  double elements = 0;
};

/// Elements of one rank, with padding.
double elementsOfRank(const ShardingContext &context, NamedTensorType type,
                      const Sharding &sharding);

/// Bytes that a rank sends in a ring (design: all-reduce 2n(p-1)/p, all-gather, reduce-scatter and
/// all-to-all n(p-1)/p; a slice none).
double ringBytes(const ShardingContext &context, const RouteStep &step, int64_t elementBytes);

/// From `from` to `to`; empty when they are equal. `to` is unreduced over no more than `from` is.
/// `price` is to be least; ringBytes without it.
llvm::SmallVector<RouteStep> routeOf(const ShardingContext &context, NamedTensorType type,
                                     const Sharding &from, const Sharding &to,
                                     const RoutePrice &price = {});
/// The walk above alone, without the look for a cheaper way.
llvm::SmallVector<RouteStep> directRoute(const ShardingContext &context, NamedTensorType type,
                                         const Sharding &from, const Sharding &to);

} // namespace cleave

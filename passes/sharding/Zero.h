//===- Zero.h - what a plan's `zero` splits over data axes ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// ZeRO as shardings (Rajbhandari et al., arXiv 1910.02054). Ranks along a data axis have
// the same params and would all do the same update; with `zero` each does a part of it.
//
//   level 1   The optimizer's state lives in shards (ShardingContext::zeroTarget says of
//             which dim), and so do all values of the update: the gradient is
//             reduce-scattered instead of all-reduced, the param's shard is updated, and
//             the new param is gathered.
//   level 2   The gradient is in shards wherever it is kept: as a result of the program, and
//             while those of micro-batches are added up, each of which is reduce-scattered
//             (level 1 adds up whole ones and scatters their sum once). Without
//             micro-batches a training step keeps none, and is that of level 1.
//   level 3   The param lives in shards. Whatever reads it, except for the update, gets
//             it gathered just before, in the layer and the pass (forward, backward) that
//             reads it.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/sharding/ParamFlow.h"

namespace cleave {

using ShardingMap = llvm::DenseMap<mlir::Value, Sharding>;

struct ZeroPlacement {
  ShardingMap readAs;    ///< params in shards, their copies, and a repeat's slices of either
  ShardingMap restsAs;   ///< gradients, once they are reduced; params whose shards are updated
  ShardingMap gradients; ///< by param: of its gradient as a result, where not the param's
};

/// How a param's optimizer state (by level also gradient, or the param) is split further.
struct ParamShards {
  Sharding shard;
  int level = 0;
};

/// Of each param of the flow, what the plan's `zero` says. `lives`: where params live without.
llvm::SmallVector<ParamShards> shardsByPlan(const ShardingContext &context,
                                            mlir::func::FuncOp function, const ParamFlow &flow,
                                            const ShardingMap &lives);

/// Decides for one function. Changes in `lives` what is in shards: params, states, gradients
/// of layers, and the values of the update.
ZeroPlacement placeShards(const ParamFlow &flow, llvm::ArrayRef<ParamShards> shards,
                          ShardingMap &lives);

} // namespace cleave

//===- Zero.cpp - what a plan's `zero` splits over data axes --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/sharding/Zero.h"
#include "passes/sharding/ParamFlow.h"

using namespace mlir;
using namespace cleave;

namespace {

class ZeroAssignment {
public:
  ZeroAssignment(const ParamFlow &flow, ArrayRef<ParamShards> shards, ShardingMap &lives)
      : flow(flow), shards(shards), lives(lives) {}

  ZeroPlacement run() {
    for (auto [p, param] : llvm::enumerate(flow.params))
      wholes.push_back(lives[param]);
    for (auto &[v, place] : flow.places) {
      const ParamShards &zero = shards[place.param];
      if (zero.level && !(zero.shard == wholes[place.param]))
        apply(v, place, zero);
    }
    return std::move(placement);
  }

private:
  void apply(Value v, const ParamFlow::Place &place, const ParamShards &zero) {
    NamedTensorType type = tensorOf(v), param = tensorOf(flow.params[place.param]);
    Sharding shard = shardingOfPart(zero.shard, param, type);
    Sharding whole = shardingOfPart(wholes[place.param], param, type);
    switch (place.role) {
    case ParamFlow::Role::Param:
      if (zero.level >= 2 && flow.gradientResults[place.param])
        placement.gradients[v] = shard;
      [[fallthrough]];
    case ParamFlow::Role::Slice:
      if (zero.level < 3)
        return;
      lives[v] = shard;
      placement.readAs[v] = whole;
      return;
    case ParamFlow::Role::Renewed:
      if (zero.level < 3)
        placement.restsAs[v] = whole;
      [[fallthrough]];
    case ParamFlow::Role::State:
    case ParamFlow::Role::Update:
      lives[v] = shard;
      return;
    case ParamFlow::Role::Gradient:
    case ParamFlow::Role::KeptGradient:
      if (zero.level < 2 && flow.onlyResults.contains(v))
        return;
      (place.role == ParamFlow::Role::Gradient ? placement.restsAs[v] : lives[v]) = shard;
      return;
    }
  }

  const ParamFlow &flow;
  ArrayRef<ParamShards> shards;
  ShardingMap &lives;
  SmallVector<Sharding> wholes;
  ZeroPlacement placement;
};

} // namespace

SmallVector<ParamShards> cleave::shardsByPlan(const ShardingContext &context, func::FuncOp function,
                                              const ParamFlow &flow, const ShardingMap &lives) {
  SmallVector<ParamShards> shards;
  for (auto [arg, layers] : llvm::zip_equal(flow.params, flow.layerDims)) {
    Sharding whole = lives.lookup(arg);
    shards.push_back(
        {context.zeroTarget(tensorOf(arg), whole, layers,
                            function.getArgAttrOfType<ArrayAttr>(arg.getArgNumber(), kPinAxes)),
         static_cast<int>(context.zeroLevel())});
  }
  return shards;
}

ZeroPlacement cleave::placeShards(const ParamFlow &flow, ArrayRef<ParamShards> shards,
                                  ShardingMap &lives) {
  return ZeroAssignment(flow, shards, lives).run();
}

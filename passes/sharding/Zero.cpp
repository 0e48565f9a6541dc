//===- Zero.cpp - what a plan's `zero` splits over data axes --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/sharding/Zero.h"

using namespace mlir;
using namespace cleave;

namespace {

bool sameDims(Value a, Value b) {
  auto x = dyn_cast<NamedTensorType>(a.getType()), y = dyn_cast<NamedTensorType>(b.getType());
  return x && y && x.getNames() == y.getNames() && x.getSizes() == y.getSizes();
}

bool isUpdate(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(kPhase);
  return phase && phase.getValue() == "optimizer";
}

class ZeroAssignment {
public:
  ZeroAssignment(const ShardingContext &context, func::FuncOp function, ShardingMap &lives)
      : context(context), function(function), lives(lives) {}

  ZeroPlacement run() {
    auto ret = cast<func::ReturnOp>(function.getBody().front().getTerminator());
    for (BlockArgument arg : function.getArguments()) {
      auto role = attribute<StringAttr>(arg, kRole);
      bool param = role && role.getValue() == "param";
      if (!param && (!role || role.getValue() != "state"))
        continue;
      auto layers = attribute<IntegerAttr>(arg, kStacked);
      Sharding whole = lives[arg];
      Sharding shard = context.zeroTarget(tensorOf(arg), whole, layers ? layers.getInt() : 0,
                                          attribute<ArrayAttr>(arg, kPinAxes));
      if (shard == whole)
        continue;
      if (!param || context.zeroLevel() == 3)
        lives[arg] = shard;
      if (param && context.zeroLevel() == 3)
        placement.readAs[arg] = whole;
      if (param && context.zeroLevel() >= 2)
        gradientResult(arg, shard, ret);
      if (auto to = attribute<IntegerAttr>(arg, kDonatedTo)) {
        Value updated = ret.getOperand(to.getInt());
        update(updated, arg, shard);
        if (param && context.zeroLevel() < 3 && lives.lookup(updated) == shard)
          placement.restsAs[updated] = whole;
      }
    }
    rest();
    copies();
    slices();
    return std::move(placement);
  }

private:
  template <typename T> T attribute(BlockArgument arg, StringRef name) {
    return function.getArgAttrOfType<T>(arg.getArgNumber(), name);
  }

  /// The value and what it is computed from, back to the gradient.
  void update(Value v, BlockArgument of, const Sharding &shard) {
    Operation *op = v.getDefiningOp();
    if (!op || !sameDims(v, of) || !inShards.try_emplace(v, shard).second)
      return;
    if (!isUpdate(op))
      return gradient(v, shard);
    lives[v] = shard;
    for (Value operand : op->getOperands())
      update(operand, of, shard);
  }

  /// What else the optimizer computes from values in shards: the gradient's norm.
  void rest() {
    for (Operation &op : function.getBody().front()) {
      if (!isUpdate(&op))
        continue;
      for (Value result : op.getResults())
        for (Value operand : op.getOperands())
          if (auto it = inShards.find(operand); it != inShards.end() && sameDims(operand, result)) {
            Sharding shard = it->second;
            if (inShards.try_emplace(result, shard).second)
              lives[result] = shard;
            break;
          }
    }
  }

  void gradientResult(BlockArgument param, const Sharding &shard, func::ReturnOp ret) {
    auto path = attribute<StringAttr>(param, kName);
    for (unsigned i = 0; path && i < function.getNumResults(); ++i)
      if (auto name = function.getResultAttrOfType<StringAttr>(i, kName);
          name && name.getValue() == "grad:" + path.getValue().str()) {
        placement.gradients[param] = shard;
        gradient(ret.getOperand(i), shard);
      }
  }

  /// Kept in shards from where its sum is complete: of layers' gradients in the layer.
  void gradient(Value v, Sharding shard) {
    auto result = dyn_cast<OpResult>(v);
    if (!result)
      return;
    if (auto join = dyn_cast<JoinDimsOp>(result.getOwner()); join && shard.dims.front().empty()) {
      lives[v] = shard;
      shard.dims.insert(shard.dims.begin(), SmallVector<int, 2>());
      return gradient(join.getOperand(), shard);
    }
    auto repeat = dyn_cast<RepeatOp>(result.getOwner());
    if (!repeat) {
      placement.restsAs[v] = shard;
      // A sum is taken before it is widened.
      if (auto wide = dyn_cast<CastOp>(result.getOwner()))
        gradient(wide.getOperand(), shard);
      return;
    }
    if (result.getResultNumber() < repeat.getNumCarried())
      return; // summed from layer to layer: whole until it is complete
    if (!shard.dims.front().empty())
      return; // no layer has a part of it
    lives[v] = shard;
    shard.dims.erase(shard.dims.begin());
    gradient(repeat.getYield().getOperand(result.getResultNumber()), shard);
  }

  /// A param in shards that is read in another type only: its shard is cast, and the copy's shards
  /// are gathered.
  void copies() {
    for (BlockArgument arg : function.getArguments()) {
      auto whole = placement.readAs.find(arg);
      if (whole == placement.readAs.end() || !llvm::all_of(arg.getUsers(), [](Operation *user) {
            return isa<CastOp, func::ReturnOp>(user) || isUpdate(user);
          }))
        continue;
      Sharding readAs = whole->second;
      for (Operation *user : arg.getUsers())
        if (isa<CastOp>(user) && !isUpdate(user)) {
          lives[user->getResult(0)] = lives[arg];
          placement.readAs[user->getResult(0)] = readAs;
        }
    }
  }

  /// Layers' slices of params in shards, and of groups of layers.
  void slices() {
    for (auto split : function.getBody().front().getOps<SplitDimOp>())
      if (auto it = placement.readAs.find(split.getOperand()); it != placement.readAs.end()) {
        Sharding whole = it->second, shard = lives[split.getOperand()];
        if (!shard.dims.front().empty())
          continue;
        whole.dims.insert(whole.dims.begin(), SmallVector<int, 2>());
        shard.dims.insert(shard.dims.begin(), SmallVector<int, 2>());
        placement.readAs[split.getResult()] = whole;
        lives[split.getResult()] = shard;
      }
    function.walk<WalkOrder::PreOrder>([&](RepeatOp repeat) {
      for (auto [slice, stack] : llvm::zip_equal(repeat.getSlices(), repeat.getStacked()))
        if (auto it = placement.readAs.find(stack); it != placement.readAs.end()) {
          Sharding whole = it->second, shard = lives[stack];
          whole.dims.erase(whole.dims.begin());
          shard.dims.erase(shard.dims.begin());
          placement.readAs[slice] = whole;
          lives[slice] = shard;
        }
    });
  }

  const ShardingContext &context;
  func::FuncOp function;
  ShardingMap &lives;
  ShardingMap inShards; ///< gradients, and values of the update
  ZeroPlacement placement;
};

} // namespace

ZeroPlacement cleave::placeByZero(const ShardingContext &context, func::FuncOp function,
                                  ShardingMap &lives) {
  return context.zeroLevel() ? ZeroAssignment(context, function, lives).run() : ZeroPlacement();
}

//===- GroupLayers.cpp - layers in groups, for recompute every(k) ---------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
//   %r = repeat layers = 6 (slices %wi = %w)
//   ->
//   %ws = split_dim %w : [layers=6, ...] -> [layer_groups=2, layers=3, ...]
//   %r = repeat layer_groups = 2 (slices %wg = %ws) { repeat layers = 3 (slices %wi = %wg) }
//
// Views only: no param is copied. What each layer takes its random numbers from is its
// number in the whole stack, so that comes as a slice, too.
//
//===----------------------------------------------------------------------===//
#include "passes/structure/GroupLayers.h"

#include "ir/Dialect.h"
#include "passes/Passes.h"

#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEGROUPLAYERS
#include "passes/structure/Passes.h.inc"
} // namespace cleave

namespace {

/// A name that no tensor of the function has yet.
std::string freshDim(func::FuncOp function, std::string name) {
  auto taken = [&] {
    auto has = [&](Type type) {
      auto tensor = dyn_cast<NamedTensorType>(type);
      return tensor && tensor.hasDim(name);
    };
    bool any = llvm::any_of(function.getArgumentTypes(), has);
    function.walk([&](Operation *op) { any |= llvm::any_of(op->getResultTypes(), has); });
    return any;
  };
  while (taken())
    name += "_";
  return name;
}

LogicalResult group(func::FuncOp function, RepeatOp repeat, int64_t size) {
  const auto count = static_cast<int64_t>(repeat.getCount());
  if (count % size) {
    std::string sizes;
    for (int64_t n = 1; n <= count; ++n)
      if (count % n == 0)
        sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
    return emitUserError(repeat.getLoc())
           << "recompute every(" << size << "): groups of " << size << " do not make "
           << repeat.getDim() << "=" << count << "; possible are " << sizes;
  }
  OpBuilder b(repeat);
  Location loc = repeat.getLoc();
  const std::string groups = freshDim(function, (repeat.getDim() + "_groups").str());
  auto split = [&](Value stack) -> Value {
    NamedTensorType whole = tensorOf(stack);
    NamedTensorType part = whole.withDim(0, whole.getNames()[0].getValue(), size);
    return SplitDimOp::create(b, loc, part.withLeadingDim(groups, count / size), stack);
  };
  SmallVector<Value> stacked;
  for (Value stack : repeat.getStacked())
    stacked.push_back(split(stack));
  const bool numbered = !repeat.getLayer().use_empty();
  if (numbered) {
    NamedTensorType type = NamedTensorType::get(b.getContext(), b.getI32Type(),
                                                {b.getStringAttr(repeat.getDim())}, {count}, {});
    stacked.push_back(
        split(IotaOp::create(b, loc, type, repeat.getDim(), ValueRange{}).getResult()));
  }
  // What the layers give in stacks: of a group's, then of all groups'.
  SmallVector<Type> ofGroup, ofAll;
  for (unsigned i = repeat.getNumCarried(); i < repeat.getNumResults(); ++i) {
    NamedTensorType whole = tensorOf(repeat.getResult(i));
    NamedTensorType part = whole.withDim(0, whole.getNames()[0].getValue(), size);
    ofGroup.push_back(part);
    ofAll.push_back(part.withLeadingDim(groups, count / size));
  }
  auto outer = RepeatOp::create(b, loc, groups, count / size, repeat.getReverse(),
                                repeat.getInits(), stacked, ofAll);
  outer->setDiscardableAttrs(repeat->getDiscardableAttrDictionary());
  outer->setAttr(kRecompute, b.getStringAttr("full"));
  OpBuilder inside = OpBuilder::atBlockEnd(&outer.getBody().front());
  auto inner =
      RepeatOp::create(inside, loc, repeat.getDim(), size, repeat.getReverse(),
                       ValueRange(outer.getCarried()), ValueRange(outer.getSlices()), ofGroup);
  inner->setDiscardableAttrs(repeat->getDiscardableAttrDictionary());
  YieldOp::create(inside, loc, inner.getResults());

  Block &from = repeat.getBody().front(), &to = inner.getBody().front();
  for (auto [old, now] : llvm::zip_equal(repeat.getCarried(), inner.getCarried()))
    old.replaceAllUsesWith(now);
  for (auto [old, now] : llvm::zip(repeat.getSlices(), inner.getSlices()))
    old.replaceAllUsesWith(now);
  if (numbered)
    repeat.getLayer().replaceAllUsesWith(inner.getSlices().back());
  to.getOperations().splice(to.end(), from.getOperations());

  for (unsigned i = 0; i < repeat.getNumResults(); ++i) {
    Value result = outer.getResult(i);
    if (i >= repeat.getNumCarried())
      result = JoinDimsOp::create(b, loc, repeat.getResult(i).getType(), result);
    repeat.getResult(i).replaceAllUsesWith(result);
  }
  repeat.erase();
  return success();
}

struct GroupLayers : cleave::impl::CleaveGroupLayersBase<GroupLayers> {
  using CleaveGroupLayersBase::CleaveGroupLayersBase;
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (failed(groupLayers(function, size)))
        return signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::groupLayers(func::FuncOp function, int64_t size) {
  if (size < 1)
    return emitUserError(function.getLoc()) << "there are no groups of " << size << " layers";
  SmallVector<RepeatOp> repeats;
  for (Operation &op : function.getBody().front())
    if (auto repeat = dyn_cast<RepeatOp>(op); repeat && repeat.getCount() > 0)
      repeats.push_back(repeat);
  for (RepeatOp repeat : repeats)
    if (failed(group(function, repeat, size)))
      return failure();
  return success();
}

//===- Expand.cpp - cleave-expand-composites ------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/differentiate/Differentiate.h"
#include "passes/sharding/Sharding.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEEXPANDCOMPOSITES
#include "passes/differentiate/Passes.h.inc"
} // namespace cleave

LogicalResult cleave::expandComposite(ExpandableOpInterface op) {
  OpBuilder b(op);
  Operation *before = op->getPrevNode();
  SmallVector<Value> values = op.expand(b);
  // For profiles: what each op is a part of. Not on constants, which are shared.
  Operation *made = before ? before->getNextNode() : &op->getBlock()->front();
  for (; made != op; made = made->getNextNode())
    if (made->getNumOperands())
      made->setAttr(kPart, b.getStringAttr(op->getName().stripDialect()));
  for (auto [result, value] : llvm::zip_equal(op->getResults(), values)) {
    if (result.getType() != value.getType())
      return op->emitOpError() << "expands to " << value.getType() << ", not " << result.getType();
    result.replaceAllUsesWith(value);
  }
  op->erase();
  return success();
}

/// Whether the plan splits a factor that the op needs whole over axes that no other
/// factor of the op can use: then only its partial form keeps them at work.
static bool wantsPartialForm(Operation *op, const ShardingContext &context) {
  auto shardable = dyn_cast<ShardableOpInterface>(op);
  if (!shardable)
    return false;
  ShardingRule rule = shardable.getShardingRule();
  llvm::DenseSet<int> whole, split;
  auto look = [&](ValueRange values, ArrayRef<std::vector<int>> dims) {
    for (auto [v, factors] : llvm::zip(values, dims)) {
      auto type = dyn_cast<NamedTensorType>(v.getType());
      if (!type)
        continue;
      Sharding target = context.target(type);
      for (auto [d, f] : llvm::enumerate(factors)) {
        FactorKind kind = rule.factors[f].kind;
        bool mayNot = kind == FactorKind::Partial || kind == FactorKind::Blocked;
        (mayNot ? whole : split).insert(target.dims[d].begin(), target.dims[d].end());
      }
    }
  };
  look(op->getOperands(), rule.operands);
  look(op->getResults(), rule.results);
  return llvm::any_of(whole, [&](int atom) { return !split.contains(atom); });
}

LogicalResult cleave::expandComposites(ModuleOp module) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  SmallVector<ExpandableOpInterface> composites;
  module.walk([&](ExpandableOpInterface op) {
    if (!op.hasKernel() || wantsPartialForm(op, *context))
      composites.push_back(op);
  });
  for (ExpandableOpInterface op : composites)
    if (failed(expandComposite(op)))
      return failure();
  return success();
}

namespace {
struct ExpandComposites : cleave::impl::CleaveExpandCompositesBase<ExpandComposites> {
  void runOnOperation() override {
    if (failed(expandComposites(getOperation())))
      signalPassFailure();
  }
};
} // namespace

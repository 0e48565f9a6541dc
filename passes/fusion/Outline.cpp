//===- Outline.cpp - groups become cleave.fused ---------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Location.h"
#include "passes/fusion/Fusion.h"
#include "passes/schedule/Layouts.h"

#include "passes/lowering/Kernels.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;

static FusedOp outlineGroup(OpBuilder &b, const Group &group, IRMapping &moved) {
  SmallVector<Value> inputs;
  SmallVector<Type> results;
  for (Value v : group.inputs)
    inputs.push_back(moved.lookupOrDefault(v));
  for (Value v : group.outputs)
    results.push_back(v.getType());
  Operation *last = group.roots.back();
  auto fused =
      FusedOp::create(b, last->getLoc(), results, inputs, b.getStringAttr(toString(group.kind)));
  if (Attribute phase = last->getAttr(kPhase))
    fused->setAttr(kPhase, phase);
  // What composites its ops are parts of, which they do not keep.
  bool composed = llvm::any_of(group.ops, [](Operation *op) { return op->hasAttr(kPart); });
  if (composed)
    fused->setAttr(kPart, b.getStringAttr(labelOf(group.ops).ops));
  if (group.kind == GroupKind::Epilogue)
    fused->setAttr(kParts, b.getDenseI64ArrayAttr(group.parts));
  Block *body = new Block;
  fused.getBody().push_back(body);
  IRMapping inside;
  for (Value v : group.inputs)
    inside.map(v, body->addArgument(v.getType(), v.getLoc()));
  OpBuilder in(b.getContext());
  in.setInsertionPointToEnd(body);
  for (Operation *op : group.ops)
    in.clone(*op, inside)->setDiscardableAttrs(DictionaryAttr::get(b.getContext()));
  SmallVector<Value> yielded;
  for (Value v : group.outputs)
    yielded.push_back(inside.lookup(v));
  YieldOp::create(in, last->getLoc(), yielded);
  return fused;
}

void cleave::outline(Block &block, const FusionPlan &plan) {
  Operation *terminator = block.getTerminator();
  OpBuilder b(terminator);
  IRMapping moved; // kept value -> result of its fused op
  llvm::DenseSet<Operation *> staying{terminator};
  for (auto &[op, index] : plan.order) {
    if (op) {
      op->moveBefore(terminator);
      staying.insert(op);
      continue;
    }
    const Group &group = plan.groups[index];
    FusedOp fused = outlineGroup(b, group, moved);
    staying.insert(fused);
    for (auto [from, to] : llvm::zip_equal(group.outputs, fused.getResults()))
      moved.map(from, to);
  }
  for (ContractOp op : plan.sameLeft)
    op->setAttr(kSameLeft, b.getUnitAttr());
  // What stays reads the fused ops' results; the rest has no users but itself.
  SmallVector<Operation *> dead;
  for (Operation &op : block) {
    if (!staying.contains(&op)) {
      dead.push_back(&op);
      continue;
    }
    if (isa<FusedOp>(op))
      continue;
    op.walk([&](Operation *inner) {
      for (OpOperand &use : inner->getOpOperands())
        if (Value to = moved.lookupOrNull(use.get()))
          use.set(to);
    });
  }
  for (Operation *op : llvm::reverse(dead)) {
    op->dropAllUses();
    op->erase();
  }
}

SmallVector<Block *> cleave::blocksToFuse(ModuleOp module) {
  SmallVector<Block *> blocks;
  module.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<FusedOp>(op))
      return WalkResult::skip();
    if (isa<func::FuncOp, RepeatOp>(op))
      for (Region &region : op->getRegions())
        for (Block &block : region)
          blocks.push_back(&block);
    return WalkResult::advance();
  });
  return blocks;
}

LogicalResult cleave::fuse(ModuleOp module, const FusionOptions &options) {
  SmallVector<Block *> blocks = blocksToFuse(module);
  for (Block *block : blocks) {
    simplify(*block);
    splitReductions(*block);
  }
  for (Block *block : blocks) {
    FusionPlan plan = planFusion(*block, options);
    if (options.fuse)
      for (BareProduct product : plan.bare)
        emitRemark(product.op->getLoc()) << "no epilogue for this product: " << product.reason;
    for (LoneSum sum : plan.loneSums)
      emitRemark(sum.op->getLoc()) << "no product makes this sum along the way: " << sum.reason;
    for (const Refusal &r : plan.refusals) {
      Operation *first = plan.groups[r.first].roots.back(),
                *second = plan.groups[r.second].roots[0];
      emitRemark(second->getLoc()) << "not in one kernel with " << first->getName().stripDialect()
                                   << " at " << locationText(first->getLoc()) << ": " << r.reason;
    }
    if (options.report)
      options.report(*block, plan);
    outline(*block, plan);
  }
  return success();
}

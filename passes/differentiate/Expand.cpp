//===- Expand.cpp - cleave-expand-composites ------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/differentiate/Differentiate.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEEXPANDCOMPOSITES
#include "passes/differentiate/Passes.h.inc"
} // namespace cleave

LogicalResult cleave::expandComposites(ModuleOp module) {
  SmallVector<ExpandableOpInterface> composites;
  module.walk([&](ExpandableOpInterface op) { composites.push_back(op); });
  for (ExpandableOpInterface op : composites) {
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
        return op->emitOpError() << "expands to " << value.getType() << ", not "
                                 << result.getType();
      result.replaceAllUsesWith(value);
    }
    op->erase();
  }
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

//===- Mutate.cpp - faults put into a per-rank program --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/sharding/Mutate.h"

#include "ir/Dialect.h"

using namespace mlir;
using namespace cleave;

namespace {

/// The operand in the result's (local) shape, without any communication: dims
/// that are to shrink keep their first part, dims that are to grow get zeros.
Value ownPart(OpBuilder &b, Operation *op) {
  Value value = op->getOperand(0);
  NamedTensorType to = tensorOf(op->getResult(0));
  for (int64_t d = 0; d < to.getRank(); ++d) {
    NamedTensorType from = tensorOf(value);
    StringRef name = to.getNames()[d].getValue();
    int64_t have = from.getSizes()[d], want = to.getSizes()[d];
    NamedTensorType next = from.withDim(d, "", want);
    if (have > want)
      value = SliceOp::create(b, op->getLoc(), next, value, name, 0, 1);
    else if (have < want)
      value = PadOp::create(b, op->getLoc(), next, value, name, 0, 1);
  }
  return value;
}

LogicalResult mutate(Operation *op, StringRef kind, MeshAttr mesh) {
  OpBuilder b(op);
  Location loc = op->getLoc();
  bool reduces = isa<AllReduceOp, ReduceScatterOp>(op);
  Value result = op->getResult(0);
  auto axes = op->getAttrOfType<ArrayAttr>("axes");
  if (kind == "drop") {
    result.replaceAllUsesWith(ownPart(b, op));
    op->erase();
    return success();
  }
  if (kind == "double") {
    b.setInsertionPointAfter(op);
    Operation *again;
    if (isa<AllReduceOp>(op))
      again = AllReduceOp::create(b, loc, result.getType(), result,
                                  op->getAttrOfType<ReductionAttr>("reduction").getValue(), axes);
    else
      again = AddOp::create(b, loc, result.getType(), result, result);
    result.replaceAllUsesExcept(again->getResult(0), again);
    return success();
  }
  if (kind == "kind") {
    if (reduces) {
      auto now = op->getAttrOfType<ReductionAttr>("reduction").getValue();
      Reduction other = now == Reduction::Sum ? Reduction::Max : Reduction::Sum;
      op->setAttr("reduction", ReductionAttr::get(b.getContext(), other));
      return success();
    }
    Value own = ownPart(b, op);
    result.replaceAllUsesWith(
        AllReduceOp::create(b, loc, result.getType(), own, Reduction::Sum, axes));
    op->erase();
    return success();
  }
  if (kind == "axis") {
    // An axis that the collective does not go over, else none.
    SmallVector<Attribute> others;
    for (StringAttr name : mesh.getNames()) {
      bool used = llvm::any_of(
          axes, [&](Attribute a) { return llvm::cast<AxisAttr>(a).getName() == name; });
      if (!used && mesh.sizeOf(name) > 1 && others.empty())
        others.push_back(AxisAttr::get(b.getContext(), name, 1, 0));
    }
    if (others.empty() || !isa<AllReduceOp>(op)) {
      result.replaceAllUsesWith(ownPart(b, op));
      op->erase();
    } else {
      op->setAttr("axes", b.getArrayAttr(others));
    }
    return success();
  }
  return op->emitError() << "there is no mutation '" << kind
                         << "'; there are drop, double, kind and axis";
}

} // namespace

LogicalResult cleave::mutateCollective(ModuleOp module, StringRef text) {
  auto [kind, number] = text.split(':');
  size_t n = 0;
  if (number.getAsInteger(10, n))
    return module.emitError() << "a mutation is written KIND:N, not '" << text << "'";
  SmallVector<Operation *> collectives;
  module.walk([&](Operation *op) {
    if (isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op))
      collectives.push_back(op);
  });
  if (n >= collectives.size())
    return module.emitError() << "mutation " << text << ": there are " << collectives.size()
                              << " collectives, numbered from 0";
  auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr);
  return mutate(collectives[n], kind, mesh ? mesh : MeshAttr::get(module.getContext(), {}, {}));
}

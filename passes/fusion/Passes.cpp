//===- Passes.cpp - the fusion passes -------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/fusion/Fusion.h"

#include "llvm/Support/raw_ostream.h"

namespace cleave {
#define GEN_PASS_DEF_FUSE
#define GEN_PASS_DEF_PRINTFUSIONGROUPS
#include "passes/fusion/Passes.h.inc"
} // namespace cleave

using namespace mlir;
using namespace cleave;

namespace {

struct FusePass : cleave::impl::FuseBase<FusePass> {
  using FuseBase::FuseBase;
  void runOnOperation() override {
    if (failed(cleave::fuse(getOperation(), {fuse, {}})))
      signalPassFailure();
  }
};

std::string text(NamedTensorType type) {
  std::string s;
  llvm::raw_string_ostream os(s);
  os << type.getElementType() << " [";
  llvm::interleaveComma(llvm::zip_equal(type.getNames(), type.getSizes()), os, [&](auto dim) {
    os << std::get<0>(dim).getValue() << "=" << std::get<1>(dim);
  });
  os << "]";
  return s;
}

std::string nameOf(Value v) {
  std::string s;
  llvm::raw_string_ostream os(s);
  if (auto arg = dyn_cast<BlockArgument>(v))
    os << "argument " << arg.getArgNumber();
  else
    os << v.getDefiningOp()->getName().stripDialect();
  if (auto type = dyn_cast<NamedTensorType>(v.getType()))
    os << ": " << text(type);
  else
    os << ": " << v.getType();
  return s;
}

struct PrintFusionGroupsPass : cleave::impl::PrintFusionGroupsBase<PrintFusionGroupsPass> {
  using PrintFusionGroupsBase::PrintFusionGroupsBase;

  void print(Block &block, unsigned indent) {
    raw_ostream &os = llvm::outs();
    FusionPlan plan = planFusion(block, {fuse, {}});
    auto list = [&](ArrayRef<StringAttr> dims) {
      os << "[";
      llvm::interleaveComma(dims, os, [&](StringAttr d) { os << d.getValue(); });
      os << "]";
    };
    for (auto [i, g] : llvm::enumerate(plan.groups)) {
      os.indent(indent) << "group " << i << ": " << toString(g.kind) << " over ";
      list(g.outer);
      if (g.product)
        os << " of a contract of " << text(tensorOf(g.product.getLhs())) << " and "
           << text(tensorOf(g.product.getRhs()));
      if (!g.reduced.empty()) {
        os << ", reduces ";
        list(g.reduced);
      }
      os << "\n";
      os.indent(indent + 2) << "ops:";
      for (Operation *op : g.ops)
        os << " " << op->getName().stripDialect();
      os << "\n";
      for (Value v : g.inputs)
        os.indent(indent + 2) << "reads " << nameOf(v) << "\n";
      for (Value v : g.outputs)
        os.indent(indent + 2) << "writes " << nameOf(v) << "\n";
      if (g.keepsProduct)
        os.indent(indent + 2) << "leaves the bare product, which others read\n";
    }
    for (const Refusal &r : plan.refusals)
      os.indent(indent) << "apart: group " << r.first << " and group " << r.second << ": "
                        << r.reason << "\n";
    for (BareProduct product : plan.bare)
      os.indent(indent) << "no epilogue: contract to " << text(product.op.getType()) << ": "
                        << product.reason << "\n";
    for (LoneSum sum : plan.loneSums)
      os.indent(indent) << "not beside a product: reduce to " << text(sum.op.getType()) << ": "
                        << sum.reason << "\n";
    for (ContractOp product : plan.sameLeft)
      os.indent(indent) << "its left side is copied by the product before: contract to "
                        << text(product.getType()) << "\n";
    for (Operation &op : block)
      for (Region &region : op.getRegions())
        for (Block &inner : region) {
          os.indent(indent) << op.getName().stripDialect() << "\n";
          print(inner, indent + 2);
        }
  }

  void runOnOperation() override {
    for (Block *block : blocksToFuse(getOperation())) {
      simplify(*block);
      splitReductions(*block);
    }
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      llvm::outs() << "function @" << function.getName() << "\n";
      print(function.getBody().front(), 2);
    }
  }
};

} // namespace

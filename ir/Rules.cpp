//===- Rules.cpp - how each op may be split -------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Since dims have names, most rules are: a factor for each name. What differs is
// which factors are summed, which need offsets, and through which operands an
// unreduced sum may pass (the operands in which the op is linear).
//
//===----------------------------------------------------------------------===//
#include "ir/Dialect.h"

using namespace mlir;
using namespace cleave;

namespace {

/// The factors of a tensor's dims, by name; new ones get the kind.
std::vector<int> dimsOf(ShardingRule &rule, Type type, FactorKind kind = FactorKind::Parallel,
                        bool needsOffset = false) {
  std::vector<int> dims;
  if (auto tensor = dyn_cast<NamedTensorType>(type))
    for (auto [name, size] : llvm::zip_equal(tensor.getNames(), tensor.getSizes()))
      dims.push_back(rule.factor(name.str(), size, kind, needsOffset));
  return dims;
}

/// A rule with one factor for each name, parallel unless `rule` has it already.
ShardingRule &byName(ShardingRule &rule, Operation *op) {
  for (Value r : op->getResults())
    rule.results.push_back(dimsOf(rule, r.getType()));
  for (Value v : op->getOperands())
    rule.operands.push_back(dimsOf(rule, v.getType()));
  return rule;
}

ShardingRule elementwise(Operation *op, std::vector<std::vector<int>> sumPasses = {},
                         std::vector<std::vector<int>> maxPasses = {},
                         PaddingFlow padding = PaddingFlow::Anything) {
  ShardingRule rule;
  byName(rule, op);
  rule.sumPasses = std::move(sumPasses);
  rule.maxPasses = std::move(maxPasses);
  rule.padding = padding;
  return rule;
}

void addDims(ShardingRule &rule, NamedTensorType type, ArrayAttr dims, FactorKind kind) {
  for (StringRef dim : dims.getAsValueRange<StringAttr>())
    rule.factor(dim.str(), type.sizeOf(dim), kind);
}

} // namespace

ShardingRule ConstantOp::getShardingRule() { return elementwise(*this); }
ShardingRule IotaOp::getShardingRule() {
  ShardingRule rule;
  rule.results.push_back(dimsOf(rule, getType(), FactorKind::Parallel, /*needsOffset=*/true));
  rule.operands.resize(getNumOperands());
  return rule;
}
ShardingRule RandomOp::getShardingRule() {
  ShardingRule rule;
  rule.results.push_back(dimsOf(rule, getType(), FactorKind::Parallel, /*needsOffset=*/true));
  rule.operands.resize(getNumOperands());
  return rule;
}

ShardingRule AddOp::getShardingRule() { return elementwise(*this, {{0, 1}}, {}, PaddingFlow::Sum); }
ShardingRule SubOp::getShardingRule() { return elementwise(*this, {{0, 1}}, {}, PaddingFlow::Sum); }
ShardingRule MulOp::getShardingRule() {
  return elementwise(*this, {{0}, {1}}, {}, PaddingFlow::Product);
}
ShardingRule DivOp::getShardingRule() { return elementwise(*this, {{0}}); }
ShardingRule MaximumOp::getShardingRule() { return elementwise(*this, {}, {{0, 1}}); }
ShardingRule MinimumOp::getShardingRule() { return elementwise(*this); }
ShardingRule PowOp::getShardingRule() { return elementwise(*this); }
ShardingRule AndOp::getShardingRule() { return elementwise(*this); }
ShardingRule OrOp::getShardingRule() { return elementwise(*this); }
ShardingRule NotOp::getShardingRule() { return elementwise(*this); }
ShardingRule NegOp::getShardingRule() { return elementwise(*this, {{0}}, {}, PaddingFlow::Sum); }
ShardingRule AbsOp::getShardingRule() { return elementwise(*this); }
ShardingRule ExpOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule LogOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule SqrtOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule RsqrtOp::getShardingRule() { return elementwise(*this); }
ShardingRule TanhOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule SigmoidOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule ErfOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule SinOp::getShardingRule() { return elementwise(*this); }
ShardingRule CosOp::getShardingRule() { return elementwise(*this); }
ShardingRule CastOp::getShardingRule() {
  // Rounding to fewer bits or to integers does not commute with a sum; `partial` says that it
  // may be done to the parts.
  if (holds(getType().getElementType(), tensorOf(getOperand()).getElementType()) || getPartial())
    return elementwise(*this, {{0}}, {{0}}, PaddingFlow::Same);
  return elementwise(*this, {}, {}, PaddingFlow::Same);
}
ShardingRule BroadcastOp::getShardingRule() {
  return elementwise(*this, {{0}}, {{0}}, PaddingFlow::Same);
}
ShardingRule StopGradientOp::getShardingRule() {
  return elementwise(*this, {{0}}, {{0}}, PaddingFlow::Same);
}
ShardingRule BarrierOp::getShardingRule() {
  return elementwise(*this, {{0}}, {{0}}, PaddingFlow::Same);
}
ShardingRule CompareOp::getShardingRule() { return elementwise(*this); }
ShardingRule SelectOp::getShardingRule() { return elementwise(*this, {{1, 2}}); }
// A pin fixes the value's sharding, and that includes that it is reduced.
ShardingRule PinOp::getShardingRule() { return elementwise(*this, {}, {}, PaddingFlow::Same); }
ShardingRule MaskPaddingOp::getShardingRule() {
  // A sum of zeros is zero, a maximum of -inf is -inf.
  double fill = getFill().convertToDouble();
  if (fill == 0)
    return elementwise(*this, {{0}});
  return fill < 0 ? elementwise(*this, {}, {{0}}) : elementwise(*this);
}

ShardingRule RenameOp::getShardingRule() {
  ShardingRule rule;
  rule.results.push_back(dimsOf(rule, getType()));
  rule.operands.push_back(rule.results[0]); // by position
  rule.sumPasses = {{0}};
  rule.maxPasses = {{0}};
  return rule;
}

ShardingRule ReduceOp::getShardingRule() {
  ShardingRule rule;
  FactorKind kind = getReduction() == Reduction::Sum   ? FactorKind::Sum
                    : getReduction() == Reduction::Max ? FactorKind::Max
                                                       : FactorKind::Min;
  addDims(rule, tensorOf(getOperand()), getDims(), kind);
  byName(rule, *this);
  if (getReduction() == Reduction::Sum) {
    rule.sumPasses = {{0}};
    rule.padding = PaddingFlow::Sum;
  }
  if (getReduction() == Reduction::Max)
    rule.maxPasses = {{0}};
  return rule;
}

ShardingRule ContractOp::getShardingRule() {
  ShardingRule rule;
  for (StringRef name : getContracted())
    rule.factor(name.str(), tensorOf(getLhs()).sizeOf(name), FactorKind::Sum);
  byName(rule, *this);
  rule.sumPasses = {{0}, {1}};
  rule.padding = PaddingFlow::Product;
  return rule;
}

ShardingRule GatherOp::getShardingRule() {
  // A rank that holds a part of the table gives zeros for ids outside of it.
  ShardingRule rule;
  rule.factors.push_back(
      {getDim().str(), tensorOf(getTable()).sizeOf(getDim()), FactorKind::Sum, true, true});
  rule.results.push_back({});
  for (auto [name, size] : llvm::zip_equal(getType().getNames(), getType().getSizes())) {
    // The looked-up dim's name may come again as a dim of the ids.
    std::string factor = name.getValue() == getDim() ? name.str() + "'" : name.str();
    rule.results[0].push_back(rule.factor(factor, size));
  }
  rule.operands.resize(getNumOperands());
  for (auto [name, size] :
       llvm::zip_equal(tensorOf(getTable()).getNames(), tensorOf(getTable()).getSizes()))
    rule.operands[0].push_back(rule.factor(name.str(), size));
  for (auto [name, size] :
       llvm::zip_equal(tensorOf(getIds()).getNames(), tensorOf(getIds()).getSizes()))
    rule.operands[1].push_back(
        rule.factor(name.getValue() == getDim() ? name.str() + "'" : name.str(), size));
  rule.sumPasses = {{0}};
  return rule;
}

ShardingRule ScatterAddOp::getShardingRule() {
  ShardingRule rule;
  rule.factors.push_back({getDim().str(), getType().sizeOf(getDim()), FactorKind::Parallel, true});
  auto key = [&](StringRef name, bool update) {
    return update && name == getDim() ? (name + "'").str() : name.str();
  };
  rule.results.push_back({});
  for (auto [name, size] : llvm::zip_equal(getType().getNames(), getType().getSizes()))
    rule.results[0].push_back(rule.factor(key(name, false), size));
  rule.operands.resize(getNumOperands());
  for (unsigned i : {0u, 1u}) {
    NamedTensorType type = tensorOf(getOperand(i));
    for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
      rule.operands[i].push_back(rule.factor(key(name, true), size, FactorKind::Sum));
  }
  rule.sumPasses = {{0}};
  return rule;
}

/// Slice and pad need one dim whole; its factor on the result side is another.
static ShardingRule blockedDim(Operation *op, StringRef operandDim) {
  ShardingRule rule;
  NamedTensorType from = tensorOf(op->getOperand(0)), to = tensorOf(op->getResult(0));
  rule.operands.resize(1);
  rule.results.resize(1);
  for (int64_t i = 0; i < from.getRank(); ++i) {
    bool blocked = from.getNames()[i].getValue() == operandDim;
    std::string name = from.getNames()[i].str();
    FactorKind kind = blocked ? FactorKind::Blocked : FactorKind::Parallel;
    rule.operands[0].push_back(rule.factor(name, from.getSizes()[i], kind));
    rule.results[0].push_back(
        blocked ? rule.factor(to.getNames()[i].str() + "'", to.getSizes()[i], kind)
                : rule.operands[0].back());
  }
  rule.sumPasses = {{0}};
  return rule;
}
ShardingRule SliceOp::getShardingRule() { return blockedDim(*this, getDim()); }
ShardingRule PadOp::getShardingRule() { return blockedDim(*this, getDim()); }

/// The dim that is cut in two, or joined, is whole on both sides; the others keep their place.
static ShardingRule firstDims(NamedTensorType whole, NamedTensorType parts, bool splits) {
  ShardingRule rule;
  std::vector<int> one, two;
  one.push_back(rule.factor(whole.getNames()[0].str(), whole.getSizes()[0], FactorKind::Blocked));
  two.push_back(rule.factor(parts.getNames()[0].str(), parts.getSizes()[0], FactorKind::Blocked));
  two.push_back(
      rule.factor(parts.getNames()[1].str() + "'", parts.getSizes()[1], FactorKind::Blocked));
  for (int64_t i = 1; i < whole.getRank(); ++i) {
    one.push_back(rule.factor(whole.getNames()[i].str(), whole.getSizes()[i]));
    two.push_back(one.back());
  }
  rule.operands = {splits ? one : two};
  rule.results = {splits ? two : one};
  rule.sumPasses = {{0}};
  rule.maxPasses = {{0}};
  rule.padding = PaddingFlow::Same;
  return rule;
}
ShardingRule SplitDimOp::getShardingRule() {
  return firstDims(tensorOf(getOperand()), getType(), /*splits=*/true);
}
ShardingRule JoinDimsOp::getShardingRule() {
  return firstDims(getType(), tensorOf(getOperand()), /*splits=*/false);
}

//===----------------------------------------------------------------------===//
// Composites: what they reduce over is partial, the rest is free.
//===----------------------------------------------------------------------===//

static ShardingRule composite(Operation *op, NamedTensorType type, ArrayAttr partial) {
  ShardingRule rule;
  addDims(rule, type, partial, FactorKind::Partial);
  return byName(rule, op);
}

ShardingRule LayerNormOp::getShardingRule() {
  return composite(*this, tensorOf(getX()), getDims());
}
ShardingRule RmsNormOp::getShardingRule() { return composite(*this, tensorOf(getX()), getDims()); }
ShardingRule SoftmaxOp::getShardingRule() { return composite(*this, tensorOf(getX()), getDims()); }
ShardingRule GeluOp::getShardingRule() { return elementwise(*this); }
ShardingRule SiluOp::getShardingRule() { return elementwise(*this); }
ShardingRule ReluOp::getShardingRule() { return elementwise(*this, {}, {{0}}); }
ShardingRule DropoutOp::getShardingRule() { return elementwise(*this, {{0}}); }
ShardingRule RopeOp::getShardingRule() {
  ShardingRule rule;
  rule.factor(getDim().str(), getType().sizeOf(getDim()), FactorKind::Blocked);
  byName(rule, *this);
  rule.sumPasses = {{0}};
  return rule;
}
ShardingRule ConcatOp::getShardingRule() {
  ShardingRule rule;
  rule.results.resize(1);
  for (auto [name, size] : llvm::zip_equal(getType().getNames(), getType().getSizes()))
    rule.results[0].push_back(rule.factor(
        name.str(), size,
        name.getValue() == getResultDim() ? FactorKind::Blocked : FactorKind::Parallel));
  std::vector<int> all;
  for (auto [i, x, dim] : llvm::enumerate(getInputs(), getDims().getAsValueRange<StringAttr>())) {
    std::vector<int> &dims = rule.operands.emplace_back();
    NamedTensorType type = tensorOf(x);
    for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
      dims.push_back(name.getValue() == dim ? rule.factor(name.str() + "#" + std::to_string(i),
                                                          size, FactorKind::Blocked)
                                            : rule.factor(name.str(), size));
    all.push_back(static_cast<int>(i));
  }
  rule.sumPasses = {all};
  return rule;
}
ShardingRule CrossEntropyOp::getShardingRule() {
  ShardingRule rule;
  for (Value v : getOperands())
    rule.operands.push_back(dimsOf(rule, v.getType(), FactorKind::Partial));
  rule.results.push_back({});
  return rule;
}

/// Query rows are independent; a split key length or depth needs the expansion.
/// The gradients of k and v are sums over what these do not have.
template <typename Attention> static ShardingRule attentionRule(Attention op, bool gradient) {
  ShardingRule rule;
  NamedTensorType q = tensorOf(op.getQuery()), k = tensorOf(op.getKey()),
                  v = tensorOf(op.getValue());
  bool numbered = op.getRate().convertToDouble() > 0;
  rule.factor(op.getQueryDim().str(), q.sizeOf(op.getQueryDim()),
              gradient ? FactorKind::Sum : FactorKind::Parallel, op.getCausal() || numbered);
  rule.factor(op.getKeyDim().str(), k.sizeOf(op.getKeyDim()), FactorKind::Partial);
  rule.factor(op.getDepthDim().str(), q.sizeOf(op.getDepthDim()), FactorKind::Partial);
  rule.factor(op.getValueDim().str(), v.sizeOf(op.getValueDim()),
              gradient ? FactorKind::Sum : FactorKind::Parallel);
  for (auto [name, size] : llvm::zip_equal(q.getNames(), q.getSizes()))
    rule.factor(name.str(), size,
                gradient && !k.hasDim(name) ? FactorKind::Sum : FactorKind::Parallel, numbered);
  return byName(rule, op);
}

ShardingRule AttentionOp::getShardingRule() { return attentionRule(*this, /*gradient=*/false); }
ShardingRule AttentionGradOp::getShardingRule() {
  ShardingRule rule = attentionRule(*this, /*gradient=*/true);
  // Linear in the gradients that come in.
  rule.sumPasses = {getLseGradient() ? std::vector<int>{5, 6} : std::vector<int>{5}};
  return rule;
}

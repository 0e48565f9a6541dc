//===- Work.cpp - how much an op computes ---------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Work.h"

using namespace mlir;
using namespace cleave;

namespace {

int64_t productOf(ArrayRef<int> factors, ArrayRef<int64_t> extents) {
  int64_t n = 1;
  for (int f : factors)
    n *= extents[f];
  return n;
}

ProductShape product(ContractOp op, const ShardingRule &rule, ArrayRef<int64_t> extents) {
  ProductShape shape{1, 1, 1, 1, tensorOf(op.getLhs()).getElementBytes()};
  for (auto [f, extent] : llvm::enumerate(extents)) {
    int factor = static_cast<int>(f);
    bool lhs = llvm::is_contained(rule.operands[0], factor);
    bool rhs = llvm::is_contained(rule.operands[1], factor);
    bool result = llvm::is_contained(rule.results[0], factor);
    (!result ? shape.k : lhs && rhs ? shape.batch : lhs ? shape.m : shape.n) *= extent;
  }
  return shape;
}

template <typename Attention>
AttentionShape attention(Attention op, const ShardingRule &rule, ArrayRef<int64_t> extents,
                         bool gradient) {
  auto extent = [&](StringRef name) { return extents[rule.indexOf(name.str())]; };
  AttentionShape shape{1,
                       extent(op.getQueryDim()),
                       extent(op.getKeyDim()),
                       extent(op.getDepthDim()),
                       op.getCausal(),
                       gradient};
  for (auto [f, size] : llvm::enumerate(extents)) {
    StringRef name = rule.factors[f].name;
    if (name != op.getQueryDim() && name != op.getKeyDim() && name != op.getDepthDim() &&
        name != op.getValueDim())
      shape.heads *= size;
  }
  return shape;
}

bool isFused(Operation *op) { return op && (isElementwise(op) || isa<ReduceOp>(op)); }

/// Whether an op that is fused gets it without reading memory of its own.
bool comesFused(Value v, Operation *reader) {
  Operation *op = v.getDefiningOp();
  if (isFused(op) && op->getBlock() == reader->getBlock())
    return true;
  if (isa_and_nonnull<ProductOpInterface>(op) && v.hasOneUse())
    return true;
  // The first of those that are fused with each other reads it for all.
  return llvm::any_of(v.getUsers(), [&](Operation *user) {
    return isFused(user) && user->getBlock() == reader->getBlock() &&
           user->getAttr(kPhase) == reader->getAttr(kPhase) && user->isBeforeInBlock(reader);
  });
}

} // namespace

OpWork cleave::workOf(Operation *op, const ShardingRule &rule, ArrayRef<int64_t> extents) {
  if (auto contract = dyn_cast<ContractOp>(op))
    return product(contract, rule, extents);
  if (auto forward = dyn_cast<AttentionOp>(op))
    return attention(forward, rule, extents, /*gradient=*/false);
  if (auto backward = dyn_cast<AttentionGradOp>(op))
    return attention(backward, rule, extents, /*gradient=*/true);
  PassShape pass;
  bool fuses = isFused(op);
  auto bytesOf = [&](Value v, ArrayRef<int> factors) {
    return static_cast<double>(productOf(factors, extents) * tensorOf(v).getElementBytes());
  };
  for (auto [i, v] : llvm::enumerate(op->getOperands()))
    if (isa<NamedTensorType>(v.getType()) && !(fuses && comesFused(v, op)))
      pass.bytes += bytesOf(v, rule.operands[i]);
  for (auto [r, v] : llvm::enumerate(op->getResults()))
    if (isa<NamedTensorType>(v.getType()) && !(fuses && llvm::all_of(v.getUsers(), isFused)))
      pass.bytes += bytesOf(v, rule.results[r]);
  int64_t all = 1;
  for (int64_t extent : extents)
    all *= extent;
  auto count = [&](ScalarFunction f) { pass.functions[static_cast<size_t>(f)] += all; };
  if (isa<ExpOp, LogOp, SigmoidOp, SinOp, CosOp, PowOp>(op))
    count(ScalarFunction::Exp);
  else if (isa<TanhOp>(op))
    count(ScalarFunction::Tanh);
  else if (isa<ErfOp>(op))
    count(ScalarFunction::Erf);
  else if (isa<RandomOp>(op))
    count(ScalarFunction::Random);
  else if (!op->hasTrait<MovesElements>())
    pass.flops += static_cast<double>(all);
  return pass;
}

//===- Work.cpp - how much an op computes ---------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Work.h"

using namespace mlir;
using namespace cleave;

namespace {

double productOf(ArrayRef<int> factors, ArrayRef<int64_t> extents) {
  double n = 1;
  for (int f : factors)
    n *= static_cast<double>(extents[f]);
  return n;
}

/// Scores times what each costs: `products` of a row's depth or value length, and the softmax.
template <typename Attention>
double attention(Attention op, const ShardingRule &rule, ArrayRef<int64_t> extents, double ofDepth,
                 double ofValue) {
  double scores = 1;
  for (auto [f, extent] : llvm::enumerate(extents))
    if (rule.factors[f].name != op.getDepthDim() && rule.factors[f].name != op.getValueDim())
      scores *= static_cast<double>(extent);
  auto length = [&](StringRef name) {
    return static_cast<double>(extents[rule.indexOf(name.str())]);
  };
  double each = 2 * (ofDepth * length(op.getDepthDim()) + ofValue * length(op.getValueDim())) + 14;
  return scores * each * (op.getCausal() ? 0.5 : 1);
}

bool isFused(Operation *op) { return op && isElementwise(op); }

} // namespace

Work cleave::workOf(Operation *op, const ShardingRule &rule, ArrayRef<int64_t> extents) {
  Work work;
  bool fuses = isElementwise(op);
  for (auto [i, v] : llvm::enumerate(op->getOperands()))
    if (auto type = dyn_cast<NamedTensorType>(v.getType()))
      if (!fuses || !isFused(v.getDefiningOp()))
        work.bytes +=
            productOf(rule.operands[i], extents) * static_cast<double>(type.getElementBytes());
  for (auto [r, v] : llvm::enumerate(op->getResults()))
    if (auto type = dyn_cast<NamedTensorType>(v.getType())) {
      double elements = productOf(rule.results[r], extents);
      if (!fuses || !llvm::all_of(v.getUsers(), isFused))
        work.bytes += elements * static_cast<double>(type.getElementBytes());
    }
  double all = 1;
  for (int64_t extent : extents)
    all *= static_cast<double>(extent);
  if (auto forward = dyn_cast<AttentionOp>(op))
    work.flops = attention(forward, rule, extents, 1, 1);
  else if (auto backward = dyn_cast<AttentionGradOp>(op))
    work.flops = attention(backward, rule, extents, 3, 2);
  else if (isa<ProductOpInterface>(op))
    work.flops = 2 * all;
  else if (isa<ExpOp, LogOp, TanhOp, SigmoidOp, ErfOp, SinOp, CosOp, PowOp, RandomOp>(op))
    work.flops = 10 * all;
  else if (!op->hasTrait<MovesElements>())
    work.flops = all;
  return work;
}

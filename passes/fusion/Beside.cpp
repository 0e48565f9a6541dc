//===- Beside.cpp - what products do along the way ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A product copies its operands into panels before it multiplies. While it has
// them at hand it sums them, where the program wants that sum (the gradient of a
// bias, beside that of its weight); and what it has copied of its left side
// serves the next product of the same left side (Q, K and V; gate and up). Operands of bf16
// and f16 are widened as they are copied, so their sums are those of f32.
//
//===----------------------------------------------------------------------===//
#include "passes/fusion/Planner.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::planner;

Value planner::operandOf(ReduceOp sum) {
  auto widened = sum.getOperand().getDefiningOp<CastOp>();
  bool asItIsCopied = widened && tensorOf(widened).getElementType() ==
                                     accumulatorOf(tensorOf(widened.getOperand()).getElementType());
  return asItIsCopied ? widened.getOperand() : sum.getOperand();
}

/// Products below copy nothing (runtime/cpu/Gemm.cpp: InPlace, Streamed).
static std::string whyNotCopied(const GemmPlan &plan) {
  constexpr int64_t leastSide = 9;
  constexpr double leastWork = 1 << 21;
  if (plan.steps() != 1 || plan.batch != 1)
    return "the product is several matrix products";
  if (std::min(plan.m, plan.n) < leastSide ||
      double(plan.m) * double(plan.n) * double(plan.k) < leastWork)
    return "the product is too small to copy its operands";
  return "";
}

static GemmPlan planOf(ContractOp op) {
  return planGemm(tensorOf(op.getLhs()), tensorOf(op.getRhs()), op.getType());
}

void Planner::fuseSums() {
  for (unsigned i = 0; i < clusters.size(); ++i) {
    Cluster &c = clusters[i];
    if (c.stays || parent[i] != i || c.roots.size() != 1)
      continue;
    auto sum = dyn_cast<ReduceOp>(c.roots[0]);
    if (!sum || sum.getReduction() != Reduction::Sum ||
        c.ops.size() != (operandOf(sum) == sum.getOperand() ? 1 : 2))
      continue;
    for (Operation *user : operandOf(sum).getUsers()) {
      auto contract = dyn_cast<ContractOp>(user);
      if (!contract || contract->getBlock() != &block)
        continue;
      std::string why = joinSum(find(clusterOf.lookup(contract)), i);
      if (why.empty()) {
        refusedSum.erase(sum);
        break;
      }
      refusedSum[sum] = why;
    }
  }
}

std::string Planner::joinSum(unsigned x, unsigned i) {
  Cluster &a = clusters[x], &b = clusters[i];
  auto contract = cast<ContractOp>(a.stays);
  auto sum = cast<ReduceOp>(b.roots[0]);
  ContractDims dims =
      classifyDims(tensorOf(contract.getLhs()), tensorOf(contract.getRhs()), contract.getType());
  NamedTensorType from = tensorOf(operandOf(sum)), to = sum.getType();
  auto real = [](NamedTensorType type) {
    SmallVector<StringAttr> names;
    for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
      if (size != 1)
        names.push_back(name);
    return names;
  };
  SmallVector<StringAttr> kept = real(to);
  for (StringAttr name : real(from))
    if (llvm::is_contained(dims.k, name) == llvm::is_contained(kept, name))
      return "the product sums over other dims";
  GemmPlan plan = planOf(contract);
  if (std::string why = whyNotCopied(plan); !why.empty())
    return why;
  if (to.getElementType() != contract.getType().getElementType())
    return "the sums have another type than the product";
  if (a.sum)
    return "the product sums another operand already";
  if (wouldCycle(x, i))
    return "what else the product reads needs the sum first";
  a.sum = sum;
  b.alive = false;
  b.roots.clear();
  parent[i] = x;
  joinOrder(x, i);
  return "";
}

/// A product with what belongs to it in the plan's order, and what it reads.
namespace {
struct Item {
  SmallVector<std::pair<Operation *, unsigned>> entries;
  ContractOp product;
  llvm::SetVector<Value> reads;
};
} // namespace

void cleave::planner::bringTogether(FusionPlan &plan) {
  constexpr int64_t mostKept = int64_t{16} << 20; // bytes, see mostKeptA in runtime/cpu/Gemm.cpp
  std::vector<Item> items;
  for (auto entry : plan.order) {
    const Group *group = entry.first ? nullptr : &plan.groups[entry.second];
    bool belongs = group && (group->kind == GroupKind::Epilogue || group->kind == GroupKind::Sums);
    if (!belongs)
      items.emplace_back();
    Item &item = items.back();
    item.entries.push_back(entry);
    if (group) {
      item.reads.insert(group->inputs.begin(), group->inputs.end());
      continue;
    }
    item.product = dyn_cast<ContractOp>(entry.first);
    entry.first->walk(
        [&](Operation *inner) { item.reads.insert(inner->operand_begin(), inner->operand_end()); });
  }
  // Where each value is made.
  llvm::DenseMap<Value, size_t> madeAt;
  auto place = [&](size_t i) {
    for (auto [op, index] : items[i].entries)
      if (op)
        for (Value v : op->getResults())
          madeAt[v] = i;
      else
        for (Value v : plan.groups[index].outputs)
          madeAt[v] = i;
  };
  for (size_t i = 0; i < items.size(); ++i)
    place(i);
  struct Left {
    Value a;
    bool transposed;
    int64_t m, k, lead;
    bool operator==(const Left &) const = default;
  };
  auto leftOf = [&](Item &item) -> std::optional<Left> {
    if (!item.product)
      return std::nullopt;
    GemmPlan gemm = planOf(item.product);
    NamedTensorType type = item.product.getType();
    if (!whyNotCopied(gemm).empty() || gemm.m * gemm.k * type.getElementBytes() > mostKept)
      return std::nullopt;
    return Left{gemm.swapped ? item.product.getRhs() : item.product.getLhs(), gemm.transA, gemm.m,
                gemm.k, gemm.lda};
  };
  for (size_t i = 0; i < items.size(); ++i) {
    std::optional<Left> left = leftOf(items[i]);
    if (!left)
      continue;
    size_t last = i;
    for (size_t j = i + 1; j < items.size(); ++j) {
      if (leftOf(items[j]) != left)
        continue;
      bool ready = llvm::all_of(items[j].reads, [&](Value v) {
        auto made = madeAt.find(v);
        return made == madeAt.end() || made->second <= last || made->second == j;
      });
      if (!ready)
        continue;
      ++last;
      std::rotate(items.begin() + last, items.begin() + j, items.begin() + j + 1);
      for (size_t k = last; k <= j; ++k)
        place(k);
      plan.sameLeft.push_back(items[last].product);
    }
    i = last;
  }
  plan.order.clear();
  for (const Item &item : items)
    plan.order.insert(plan.order.end(), item.entries.begin(), item.entries.end());
}

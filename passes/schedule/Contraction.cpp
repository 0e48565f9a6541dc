//===- Contraction.cpp - contractions as matrix products ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Contraction.h"

#include "llvm/Support/raw_ostream.h"

#include <optional>

using namespace mlir;
using namespace cleave;

ContractDims cleave::classifyDims(NamedTensorType lhs, NamedTensorType rhs,
                                  NamedTensorType result) {
  ContractDims dims;
  for (auto [name, size] : llvm::zip_equal(lhs.getNames(), lhs.getSizes())) {
    if (size == 1)
      continue;
    if (!result.hasDim(name))
      dims.k.push_back(name);
    else if (rhs.hasDim(name))
      dims.batch.push_back(name);
    else
      dims.m.push_back(name);
  }
  for (auto [name, size] : llvm::zip_equal(rhs.getNames(), rhs.getSizes()))
    if (size != 1 && !lhs.hasDim(name))
      dims.n.push_back(name);
  return dims;
}

namespace {

enum Part { Batch, M, N, K };

/// One loop of the contraction: a dim, or several that lie together wherever
/// they occur. A stride is 0 where the tensor lacks the dim.
struct Loop {
  Part part;
  int64_t size;
  int64_t a, b, c;
};

int64_t strideOf(NamedTensorType type, StringAttr name) {
  int64_t stride = 1;
  for (int64_t i = type.getRank() - 1; i >= 0; --i) {
    if (type.getNames()[i] == name)
      return stride;
    stride *= type.getSizes()[i];
  }
  return 0;
}

/// Outer and inner are one loop over size product.
bool lieTogether(const Loop &outer, const Loop &inner) {
  auto together = [&](int64_t out, int64_t in) { return out == in * inner.size; };
  return outer.part == inner.part && together(outer.a, inner.a) && together(outer.b, inner.b) &&
         together(outer.c, inner.c);
}

SmallVector<Loop> loopsOf(NamedTensorType a, NamedTensorType b, NamedTensorType c) {
  SmallVector<Loop> loops;
  ContractDims dims = classifyDims(a, b, c);
  auto add = [&](ArrayRef<StringAttr> names, Part part, NamedTensorType sizes) {
    for (StringAttr name : names)
      loops.push_back(
          {part, sizes.sizeOf(name), strideOf(a, name), strideOf(b, name), strideOf(c, name)});
  };
  add(dims.batch, Batch, a);
  add(dims.m, M, a);
  add(dims.n, N, b);
  add(dims.k, K, a);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < loops.size() && !changed; ++i)
      for (size_t j = 0; j < loops.size() && !changed; ++j)
        if (i != j && lieTogether(loops[i], loops[j])) {
          loops[j].size *= loops[i].size;
          loops.erase(loops.begin() + i);
          changed = true;
        }
  }
  return loops;
}

/// Rough nanoseconds: the arithmetic, slower for thin matrices, a call for each
/// product, a step for each iteration of the outer loops.
double costOf(const GemmPlan &plan) {
  constexpr double multiplyAdd = 0.02, call = 100, step = 800;
  double steps = static_cast<double>(plan.steps());
  double thin =
      (1 + 6.0 / double(plan.m)) * (1 + 6.0 / double(plan.n)) * (1 + 4.0 / double(plan.k));
  double product = double(plan.m) * double(plan.n) * double(plan.k) * multiplyAdd * thin + call;
  return steps * (step + double(plan.batch) * product);
}

/// The plan with these loops (or null) in the matrix product, the others around it.
std::optional<GemmPlan> planFor(ArrayRef<Loop> loops, const Loop *batch, const Loop *m,
                                const Loop *n, const Loop *k) {
  GemmPlan plan;
  auto size = [](const Loop *l) { return l ? l->size : 1; };
  plan.batch = size(batch);
  plan.m = size(m);
  plan.n = size(n);
  plan.k = size(k);
  // Of each matrix's two loops one must be innermost; rows are a stride apart.
  auto arrange = [](int64_t rowStride, int64_t colStride, int64_t rows, int64_t cols,
                    bool &transposed, int64_t &lead) {
    transposed = false;
    if (cols == 1 || colStride == 1) {
      lead = rows == 1 ? std::max<int64_t>(cols, 1) : rowStride;
      if (lead >= cols)
        return true;
    }
    if (rows == 1 || rowStride == 1) {
      transposed = true;
      lead = cols == 1 ? std::max<int64_t>(rows, 1) : colStride;
      return lead >= rows;
    }
    return false;
  };
  bool transC;
  auto stride = [](const Loop *l, int64_t Loop::*which) { return l ? l->*which : 0; };
  if (!arrange(stride(m, &Loop::a), stride(k, &Loop::a), plan.m, plan.k, plan.transA, plan.lda) ||
      !arrange(stride(k, &Loop::b), stride(n, &Loop::b), plan.k, plan.n, plan.transB, plan.ldb) ||
      !arrange(stride(m, &Loop::c), stride(n, &Loop::c), plan.m, plan.n, transC, plan.ldc) ||
      transC)
    return std::nullopt;
  if (batch) {
    plan.strideA = batch->a;
    plan.strideB = batch->b;
    plan.strideC = batch->c;
  }
  for (const Loop &l : loops)
    if (&l != batch && &l != m && &l != n && &l != k)
      plan.loops.push_back({l.size, l.a, l.b, l.c, l.part == K});
  plan.cost = costOf(plan);
  return plan;
}

void considerAll(ArrayRef<Loop> loops, bool swapped, std::optional<GemmPlan> &best) {
  // Each of m, n, k, batch takes one loop of its kind, or none.
  SmallVector<const Loop *> choices[4];
  for (const Loop &l : loops) {
    choices[l.part].push_back(&l);
    if (l.part == M || l.part == N)
      choices[Batch].push_back(&l); // the other operand is shared: stride 0
  }
  for (auto &list : choices)
    list.push_back(nullptr);
  for (const Loop *m : choices[M])
    for (const Loop *n : choices[N])
      for (const Loop *k : choices[K])
        for (const Loop *batch : choices[Batch]) {
          if (batch && (batch == m || batch == n))
            continue;
          std::optional<GemmPlan> plan = planFor(loops, batch, m, n, k);
          if (plan && (!best || plan->cost < best->cost)) {
            best = plan;
            best->swapped = swapped;
          }
        }
}

} // namespace

GemmPlan cleave::planGemm(NamedTensorType lhs, NamedTensorType rhs, NamedTensorType result) {
  std::optional<GemmPlan> best;
  considerAll(loopsOf(lhs, rhs, result), false, best);
  considerAll(loopsOf(rhs, lhs, result), true, best);
  return *best;
}

std::optional<SmallVector<int64_t>> cleave::partsOf(const GemmPlan &plan, NamedTensorType result) {
  if (plan.steps() != 1)
    return std::nullopt;
  struct Run {
    GemmPart part;
    int64_t size, stride;
  };
  SmallVector<Run> runs;
  if (plan.n > 1)
    runs.push_back({GemmPart::Column, plan.n, 1});
  if (plan.m > 1)
    runs.push_back({GemmPart::Row, plan.m, plan.ldc});
  if (plan.batch > 1)
    runs.push_back({GemmPart::Batch, plan.batch, plan.strideC});
  llvm::sort(runs, [](const Run &x, const Run &y) { return x.stride < y.stride; });
  // The result is dense: its dims, innermost first, fill one run after the other.
  SmallVector<int64_t> parts(result.getRank(), static_cast<int64_t>(GemmPart::Row));
  size_t run = 0;
  int64_t left = runs.empty() ? 1 : runs[0].size, stride = 1;
  for (int64_t i = result.getRank(); i-- > 0;) {
    int64_t size = result.getSizes()[i];
    if (size != 1 && left == 1 && ++run < runs.size())
      left = runs[run].size;
    if (run < runs.size())
      parts[i] = static_cast<int64_t>(runs[run].part);
    if (size == 1)
      continue;
    if (run >= runs.size() || left % size || (left == runs[run].size && runs[run].stride != stride))
      return std::nullopt;
    left /= size;
    stride *= size;
  }
  return left == 1 && run + 1 >= runs.size() ? std::optional(parts) : std::nullopt;
}

std::string cleave::describe(const GemmPlan &plan) {
  std::string text;
  llvm::raw_string_ostream out(text);
  for (const GemmPlan::Loop &loop : plan.loops)
    out << (loop.summed ? "sum " : "loop ") << loop.size << " ";
  if (plan.batch != 1)
    out << "batch " << plan.batch << " ";
  out << plan.m << "x" << plan.n << "x" << plan.k << (plan.swapped ? " swapped" : "")
      << (plan.transA ? " A^T" : "") << (plan.transB ? " B^T" : "");
  return text;
}

//===- Contraction.h - contractions as matrix products ----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"

#include <optional>
#include <string>

namespace cleave {

/// A contraction as matrix products C = op(A) op(B) on tensors where they lie:
/// `loops` outermost, each iteration one batched product. Strides in elements.
/// Without `swapped`, A is the left side and B the right one.
struct GemmPlan {
  bool swapped = false;
  bool transA = false, transB = false;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  int64_t lda = 1, ldb = 1, ldc = 1;
  int64_t strideA = 0, strideB = 0, strideC = 0;

  struct Loop {
    int64_t size = 1;
    int64_t strideA = 0, strideB = 0, strideC = 0;
    bool summed = false; ///< its iterations but the first add to C
  };
  llvm::SmallVector<Loop> loops;

  /// Rough time of one core in nanoseconds.
  double cost = 0;

  int64_t steps() const {
    int64_t steps = 1;
    for (const Loop &loop : loops)
      steps *= loop.size;
    return steps;
  }
};

/// What a dim of the result is in a matrix product.
enum class GemmPart : int64_t { Batch, Row, Column };

/// The part of each dim of the result (as GemmPart); dims of a part stand together
/// and are its index, flattened. Dims of size 1 have that of a neighbour. None if
/// the plan is several products.
std::optional<llvm::SmallVector<int64_t>> partsOf(const GemmPlan &plan, NamedTensorType result);

/// The cheapest plan. There always is one, if need be of single numbers in loops.
GemmPlan planGemm(NamedTensorType lhs, NamedTensorType rhs, NamedTensorType result);

/// The names of a contraction's dims by their part in it, in the order of the
/// first of lhs, rhs that has them. Dims of size 1 are left out.
struct ContractDims {
  llvm::SmallVector<mlir::StringAttr> batch, m, n, k;
};
ContractDims classifyDims(NamedTensorType lhs, NamedTensorType rhs, NamedTensorType result);

/// "2 x [6 x 8 x 4] A^T" and so on, for listings and remarks.
std::string describe(const GemmPlan &plan);

} // namespace cleave

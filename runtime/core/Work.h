//===- Work.h - what a piece of work is -------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <array>
#include <cstdint>

namespace cleave {

/// What an element costs many arithmetic ops for. Exp: also log and sigmoid; Sin: also cos; Pow:
/// also all functions of f64, which the library evaluates one by one; Random: a number of Philox.
enum class ScalarFunction : uint8_t { Exp, Tanh, Erf, Sin, Pow, Random };
inline constexpr std::array scalarFunctionNames = {"exp", "tanh", "erf", "sin", "pow", "random"};
/// How many of each.
using FunctionCounts = std::array<int64_t, scalarFunctionNames.size()>;

/// `batch` products C[b] = op(A[b]) * op(B[b]), C[b] of m x n, sums of k terms.
struct ProductShape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t elementBytes = 4;            ///< of A and B
  bool transA = false, transB = false; ///< stored as k x m; as n x k

  /// 2 for a product and its sum, as Step::flops counts.
  double flops() const { return 2.0 * double(batch) * double(m) * double(n) * double(k); }
  /// Each operand read and the result written once.
  double bytes() const {
    double one = double(m) * double(k) + double(k) * double(n) + double(m) * double(n);
    return double(batch) * double(elementBytes) * one;
  }
};

/// Attention without the scores in memory. heads 0: there is none.
struct AttentionShape {
  int64_t heads = 0; ///< of the queries, of all sequences together
  int64_t queries = 0, keys = 0, depth = 0;
  bool causal = false, gradient = false;

  /// Two products of each score forward, five backward, and the softmax; of a causal one, half of
  /// the scores.
  double flops() const {
    double scores = double(heads) * double(queries) * double(keys) * (causal ? 0.5 : 1.0);
    return scores * ((gradient ? 10.0 : 4.0) * double(depth) + 14);
  }
};

/// A pass over memory: elementwise ops, norms, softmax, optimizers.
struct PassShape {
  double bytes = 0; ///< read and written
  double flops = 0; ///< 1 for an arithmetic op; functions are not among them
  FunctionCounts functions = {};
};

} // namespace cleave
